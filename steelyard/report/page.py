"""A report as one HTML page that needs no network: opened from disk, sent by mail, printed.

Everything a run put on record reaches the page as gzip in base64, and the screen as text nodes: no name can become
markup. A Content-Security-Policy forbids every connection, and any script but the page's own and plotly.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from steelyard._version import __version__
from steelyard.core.errors import SteelyardError
from steelyard.report.figures import Report

_PARTS = files("steelyard.report")


def write(report: Report, path: str | Path) -> Path:
    """Writes a report to a file; what is there is replaced."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise SteelyardError(f"{path}: a report is a page: give it the ending .html")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path}: there is no directory {path.parent}: make it first")
    made = html(report)
    try:
        path.write_text(made, "utf-8", "replace")  # a name may hold half of a surrogate pair
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def html(report: Report | None, live: bool = False, title: str = "") -> str:
    """The page's text.

    Args:
        report: what it shows; a live page may have nothing yet.
        live: ask the server it came from for more, every other second.
        title: until there is a report.
    """
    script = "(() => {\n" + read_asset("plots.js") + read_asset("page.js") + "})();\n"
    packed = "" if report is None else _compress(json.dumps(report.to_dict(), separators=(",", ":"), allow_nan=False))
    parts = {
        "POLICY": escape(content_policy(script, live)),
        "VERSION": escape(__version__),
        "TITLE": escape(title if report is None else report.title),
        "STYLE": read_asset("page.css"),
        "LIVE": "yes" if live else "no",
        "REPORT": packed,
        "PLOTLY": _plotly(),
        "SCRIPT": script,
    }
    return fill_template("page.html", parts)


def fill_template(name: str, parts: Mapping[str, str]) -> str:
    """Return a template of this package with `{{NAME}}` replaced by the part of that name."""
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], read_asset(name))


def content_policy(script: str, live: bool) -> str:
    """No network, no script but ours, and plotly from memory; plotly sets styles of its own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}' blob:",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise SteelyardError('a report needs plotly: pip install "steelyard[report]"') from None
    return _compress(get_plotlyjs())


def _compress(text: str) -> str:
    """The same text gives the same bytes: no date is written."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def read_asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (_PARTS / name).read_text(encoding="utf-8")
