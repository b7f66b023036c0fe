"""The report of runs that go on, served to this machine alone; the page asks for news every other second."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steelyard.core.errors import SteelyardError
from steelyard.report.build import gather
from steelyard.report.figures import Report
from steelyard.report.page import html
from steelyard.runs.directory import CONFIG, ROUNDS

HOST = "127.0.0.1"


class Source:
    """The newest report of run directories, made again only when their files have changed."""

    def __init__(self, directories: Sequence[str | Path], target: float | None = None) -> None:
        self.directories, self.target = [Path(directory) for directory in directories], target
        for directory in self.directories:
            if not directory.is_dir():
                raise SteelyardError(f"{directory}: no such directory: give the run's, or one that runs are in")
        self.lock = threading.Lock()
        self.seen = ""
        self.news: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """What the files look like now: names, sizes, times."""
        found = []
        for directory in self.directories:
            for name in (CONFIG, ROUNDS):
                for path in sorted(directory.rglob(name)):
                    try:
                        about = path.stat()
                    except FileNotFoundError:  # a run is being overwritten
                        continue
                    found.append((str(path), about.st_size, about.st_mtime_ns))
        return hashlib.sha256(repr(found).encode()).hexdigest()[:16]

    def answer(self, have: str) -> bytes | None:
        """News as JSON for a page that has seen `have`; None if there are none."""
        with self.lock:  # several pages: the work is done once
            version = self.version
            if version != self.seen:
                self.news = {"version": version, **self._look()}
                self.seen = version
            if have == version:
                return None
            return json.dumps(self.news, separators=(",", ":"), allow_nan=False).encode()

    def _look(self) -> dict[str, Any]:
        try:
            report = gather(self.directories, self.target)
        except (SteelyardError, OSError, ValueError) as error:  # of a run that has just begun, or is being written
            return {"state": f"Waiting: {error}"}
        except Exception as error:  # a page that hears nothing takes the server for ended
            return {"state": f"These runs cannot be shown ({type(error).__name__}: {error}): this page tries on."}
        return {"state": _state(report), "report": report.to_dict()}


def _state(report: Report) -> str:
    if not report.going:
        return "Live: all runs are finished; new ones will show."
    return f"Live: {report.going} unfinished; this page follows."


class Watch(ThreadingHTTPServer):
    """A server of one page and its data, on 127.0.0.1.

    Args:
        directories: run directories, or directories of them; runs that begin later are found.
        port: 0 for any that is free.
        target: an accuracy, for rounds to target.
    """

    daemon_threads = True

    def __init__(self, directories: Sequence[str | Path], port: int = 0, target: float | None = None) -> None:
        self.source = Source(directories, target)
        self.page = html(None, live=True, title="Waiting for the first round").encode("utf-8", "replace")
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SteelyardError(f"port {port}: cannot be used: {why}: choose another port (--port)") from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    timeout = 20  # seconds: a silent connection does not hold a thread for ever

    def do_GET(self) -> None:
        """The page, or what is new since the version that the page has."""
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            self.send_error(403)  # another site's name that leads here: it must not read our runs
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._send(self.server.page, "text/html; charset=utf-8")
        elif address.path == "/data":
            news = self.server.source.answer(parse_qs(address.query).get("have", [""])[0])
            self._send(news, "application/json")
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
        """Nothing: the terminal is the user's."""
