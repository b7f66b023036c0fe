"""Writes a report as one HTML page that needs no network.

Recorded values are in the page as base64 of gzip, and the script shows them as text nodes: a name
cannot become markup. A Content-Security-Policy forbids all connections, and all scripts except the
script of the page and plotly.
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
    """Write a report to an HTML file. An existing file is replaced."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise SteelyardError(f"{path}: a report is an HTML page: use a name that ends with .html")
    if not path.parent.is_dir():
        raise SteelyardError(f"{path}: there is no directory {path.parent}: make it first")
    text = html(report)
    try:
        # "replace", because a name may contain half of a surrogate pair.
        path.write_text(text, "utf-8", "replace")
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def html(report: Report | None, live: bool = False, title: str = "") -> str:
    """Return the HTML text of a page.

    Args:
        report: what the page shows; None for a live page without a round yet.
        live: ask the server for news every two seconds.
        title: the title if there is no report.
    """
    script = "(() => {\n" + read_asset("plots.js") + read_asset("page.js") + "})();\n"
    data = ""
    if report is not None:
        title = report.title
        data = _compress(json.dumps(report.to_dict(), separators=(",", ":"), allow_nan=False))
    parts = {
        "POLICY": escape(content_policy(script, live)),
        "VERSION": escape(__version__),
        "TITLE": escape(title),
        "STYLE": read_asset("page.css"),
        "LIVE": "yes" if live else "no",
        "REPORT": data,
        "PLOTLY": _plotly(),
        "SCRIPT": script,
    }
    return fill_template("page.html", parts)


def fill_template(name: str, parts: Mapping[str, str]) -> str:
    """Return a template of this package with `{{NAME}}` replaced by the part of that name."""
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], read_asset(name))


def content_policy(script: str, live: bool) -> str:
    """Return the Content-Security-Policy of a page.

    It allows the script of the page, plotly (from memory, as a blob) and the inline styles that
    plotly sets; connections only to the page's own server, if it is live.
    """
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
    """Return base64 of gzip. The same text gives the same bytes: no date is written."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def read_asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (_PARTS / name).read_text(encoding="utf-8")
