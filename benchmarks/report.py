"""The report page in a real Chromium: seconds until the first figure of a large comparison is drawn.

Four runs of 100 clients and 500 rounds. Needs Chromium on the PATH. Wall-clock time is measured
here and not in the tests, because other work on the machine changes it.
"""

import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.report.conftest import ARGUMENTS, find_chromium
from tests.report.runs import write_large_page

REPEATS = 5


def measure_first_figure(browser, file: Path) -> float:
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("figure[data-drawn]")
    milliseconds = page.evaluate("performance.getEntriesByName('figures')[0].startTime")
    page.close()
    return milliseconds / 1000


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        print("no Chromium on the PATH: the report page is not measured")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = write_large_page(Path(folder))
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        seconds = [measure_first_figure(browser, file) for _ in range(REPEATS)]
        browser.close()
        print(
            f"page of {file.stat().st_size / 1e6:.1f} MB: first figure after "
            f"{statistics.median(seconds):.2f} s"
        )


if __name__ == "__main__":
    main()
