"""A real Chromium for the tests of this folder, and what its pages did."""

import os
import shutil
from pathlib import Path

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SCREENSHOTS = (
    Path(__file__).parents[2] / "out" / "screenshots"
)  # kept as test artefacts, git-ignored


def find_chromium():
    """Returns the path of the system's Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


@pytest.fixture(scope="module")  # not longer: while it lives, an event loop runs in this thread
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium on this machine: the page is not opened")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Opens pages, and at the end says no to any error on the console and any word to a network."""
    contexts, complaints, addresses = [], [], []

    def watched(address, width=1280, height=900, allowed="file:", wait="figure[data-drawn]"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: addresses.append((allowed, request.url)))
        page.goto(address if "://" in str(address) else Path(address).resolve().as_uri())
        if wait:
            page.wait_for_selector(wait, timeout=120_000)
        return page

    watched.complaints = complaints
    yield watched
    for context in contexts:
        context.close()
    assert complaints == []
    strangers = [
        url for allowed, url in addresses if not url.startswith((allowed, "blob:", "data:"))
    ]
    assert strangers == []


@pytest.fixture
def screenshot():
    def take(page, name, whole=True):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=os.fspath(SCREENSHOTS / f"{name}.png"), full_page=whole)

    return take


def draw_all(page):
    """Scrolls to every figure, so that all are drawn."""
    names = page.evaluate("[...document.querySelectorAll('figure')].map(figure => figure.id)")
    for name in names:
        page.evaluate("name => document.getElementById(name).scrollIntoView()", name)
        page.wait_for_selector(f'figure[data-drawn][id="{name}"] .main-svg', timeout=120_000)
    page.evaluate("scrollTo(0, 0)")
    return names
