"""Serves the report of running experiments to this machine only.

The page asks for news every two seconds.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steelyard.core._errors import SteelyardError
from steelyard.recorder._ledger import Ledgers
from steelyard.report._alerts import Alert, Alerts, Condition
from steelyard.report._build import build_report, render_html
from steelyard.report._figures import Report
from steelyard.runs._directory import CONFIG, ROUNDS

HOST = "127.0.0.1"
_CHECK_INTERVAL = 1.0  # seconds between two checks of the conditions


class Source:
    """The newest report of run directories. It is built again only when their files change."""

    def __init__(self, directories: Sequence[str | Path], target: float | None = None) -> None:
        self.directories = [Path(directory) for directory in directories]
        self.target = target
        for directory in self.directories:
            if not directory.is_dir():
                raise SteelyardError(
                    f"{directory}: no such directory: name a run directory, or one that contains "
                    f"runs"
                )
        self.lock = threading.Lock()
        self.ledgers = Ledgers()  # contributions: only new rounds are read
        self.news_version = ""
        self.news: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """A hash of the names, sizes and times of the files."""
        states = []
        for directory in self.directories:
            for name in (CONFIG, ROUNDS):
                for path in sorted(directory.rglob(name)):
                    try:
                        status = path.stat()
                    except FileNotFoundError:  # a run is being overwritten
                        continue
                    states.append((str(path), status.st_size, status.st_mtime_ns))
        return hashlib.sha256(repr(states).encode()).hexdigest()[:16]

    def answer(self, have: str) -> bytes | None:
        """Return news as JSON for a page that has the version `have`; None if nothing is new."""
        with self.lock:  # several pages may ask: the report is built once
            version = self.version
            if version != self.news_version:
                self.news = {"version": version, **self._build_news()}
                self.news_version = version
            if have == version:
                return None
            return json.dumps(self.news, separators=(",", ":"), allow_nan=False).encode()

    def _build_news(self) -> dict[str, Any]:
        try:
            report = build_report(self.directories, self.target, ledgers=self.ledgers)
        except (SteelyardError, OSError, ValueError) as error:
            # A run has just started, or a file is being written.
            return {"state": f"Waiting: {error}"}
        except Exception as error:
            # Without an answer, the page would say that the server has stopped.
            reason = f"{type(error).__name__}: {error}"
            return {"state": f"These runs cannot be shown ({reason}). The page keeps trying."}
        return {"state": _describe_state(report), "report": report.to_dict()}


def _describe_state(report: Report) -> str:
    if not report.unfinished_runs:
        return "Live: all runs are finished; new runs will be added."
    return f"Live: {report.unfinished_runs} unfinished; this page updates itself."


class Watch(ThreadingHTTPServer):
    """A server of the page and its data on 127.0.0.1.

    Args:
        directories: run directories, or directories that contain them. Runs that start later are
            added.
        port: the port; 0 for any free port.
        target: the accuracy to reach, for rounds to target.
        conditions: conditions on recorded numbers, which are checked every second.
        report_alert: is called with every alert, in the thread that serves. It may raise an
            exception, which ends `serve_forever`.
    """

    daemon_threads = True

    def __init__(
        self,
        directories: Sequence[str | Path],
        port: int = 0,
        target: float | None = None,
        conditions: Sequence[Condition] = (),
        report_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        self.source = Source(directories, target)
        self.alerts = Alerts(self.source.directories, conditions)
        self.report_alert = report_alert
        self.next_check = 0.0
        self.page = render_html(None, live=True, title="Waiting for the first round").encode(
            "utf-8", "replace"
        )
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SteelyardError(
                f"port {port}: cannot be used: {reason}: choose another port (--port)"
            ) from None

    def service_actions(self) -> None:
        """Check the conditions, between two requests."""
        if self.report_alert is None or time.monotonic() < self.next_check:
            return
        for alert in self.alerts.check():
            self.report_alert(alert)
        self.next_check = time.monotonic() + _CHECK_INTERVAL

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    timeout = 20  # seconds: a silent connection must not occupy a thread forever

    def do_GET(self) -> None:
        """Send the page, or the news since the version that the page has."""
        # Refuse requests by another host name (DNS rebinding): other sites must not read our runs.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(403)
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._send(self.server.page, "text/html; charset=utf-8")
        elif address.path == "/data":
            version = parse_qs(address.query).get("have", [""])[0]
            self._send(self.server.source.answer(version), "application/json")
        else:
            self.send_error(404)

    def _send(self, body: bytes | None, kind: str) -> None:
        self.send_response(200 if body is not None else 204)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests are not logged on the terminal."""
