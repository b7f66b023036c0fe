"""The page in a real Chromium: drawn, sorted, hidden, downloaded, printed, at desktop and phone width."""

import csv
import io

import pytest

from steelyard.report._build import build_report, render_html, write_report
from tests.report.conftest import draw_all
from tests.report.runs import HOSTILE, comparison, falling, write_large_page, write_run

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    return build_report(
        [comparison(folder / "runs", ids=[f"client-{k}" for k in range(12)], rounds=30)],
        out="report.html",
    )


@pytest.fixture(scope="module")
def page_file(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("page") / "report.html")


def column(page, table, number):
    cells = page.locator(f"{table} tbody td:nth-child({number})")
    return cells.all_inner_texts()


@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_drawn_and_the_page_does_not_scroll_sideways(
    page_file, report, opened, screenshot, size
):
    page = opened(page_file, *SIZES[size])
    names = draw_all(page)
    assert names == [f"figure-{figure.name}" for figure in report.figures]
    for figure in report.figures:
        marks = page.locator(f"#figure-{figure.name} .plot").evaluate(
            "plot => ['scatterlayer', 'barlayer', 'heatmaplayer'].map("
            "layer => plot.querySelectorAll(`.${layer} .trace, .${layer} image`).length)"
        )
        expected = sum(3 if line.high else 1 for line in figure.lines) + len(figure.marks)
        assert marks == [expected, len(figure.bars), len(figure.heats)], figure.name
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("h2").all_inner_texts()[0] == "Summary"
    screenshot(page, f"report-{size}")


def test_labels_of_a_heatmap_are_at_their_columns_and_rows(tmp_path, opened):
    """Rounds and clients are numbered: a label must not be taken for a position."""
    runs = comparison(tmp_path / "runs", ids=list(range(1, 13)), rounds=30)
    file = write_report(build_report([runs], out="report.html"), tmp_path / "report.html")
    page = opened(file)
    draw_all(page)
    labels = page.locator("#figure-weights .plot").evaluate(
        "plot => ['xaxis', 'yaxis'].map(name => plot._fullLayout[name]).map("
        "axis => axis._vals.map(tick => [axis._categories[tick.x], tick.text]))"
    )
    rounds, clients = labels
    assert [text for _, text in rounds] == ["1", "5", "10", "15", "20", "25", "30"]
    assert [text for _, text in clients] == [str(client) for client in range(1, 13)]
    for category, text in (*rounds, *clients):
        assert category == text


def test_a_click_on_the_legend_hides_a_series_and_another_shows_it(page_file, opened, screenshot):
    page = opened(page_file)
    button = page.locator("#figure-accuracy .legend button").nth(2)
    assert button.inner_text() == "pa3fed:beta=0.2"
    shown = "plot => plot.data.filter(trace => trace.visible).length + ',' + (plot.layout.shapes || []).length"
    plot = page.locator("#figure-accuracy .plot")
    assert plot.evaluate(shown) == "9,2"
    button.click()
    assert plot.evaluate(shown) == "6,0"  # its band and its critical periods go with it
    assert page.locator("#figure-accuracy .scatterlayer .trace").count() == 6
    assert button.get_attribute("aria-pressed") == "false"
    screenshot(page, "report-hidden-series")
    page.keyboard.press("Enter")  # the button keeps the focus
    assert plot.evaluate(shown) == "9,2"
    assert button.get_attribute("aria-pressed") == "true"


def test_tables_sort_by_mouse_and_keyboard_and_say_so(page_file, opened):
    page = opened(page_file)
    last = page.locator("#summary th").nth(3)
    assert column(page, "#summary", 1) == ["fedavg", "fedlaw", "pa3fed:beta=0.2"]
    last.locator("button").click()
    assert last.get_attribute("aria-sort") == "ascending"
    assert column(page, "#summary", 1) == ["pa3fed:beta=0.2", "fedavg", "fedlaw"]
    page.keyboard.press("Enter")
    assert last.get_attribute("aria-sort") == "descending"
    assert falling([float(text) for text in column(page, "#summary", 4)])
    page.locator("#figure-loss summary").click()
    rounds = page.locator("#figure-loss th").first
    rounds.locator("button").click()
    rounds.locator("button").click()
    assert column(page, "#figure-loss", 1)[:3] == ["30", "29", "28"]  # as numbers, not as text


def test_the_download_holds_the_numbers_of_the_figure(page_file, report, opened):
    page = opened(page_file)
    for name, button, rows in (
        ("accuracy", "Download CSV", 30),
        ("weights", "CSV of all cells", 3 * 12 * 30),
    ):
        page.evaluate("name => document.getElementById(name).scrollIntoView()", f"figure-{name}")
        page.locator(f"#figure-{name} summary").click()
        with page.expect_download() as waiting:
            page.locator(f"#figure-{name}").get_by_role("button", name=button).click()
        text = waiting.value.path().read_text(encoding="utf-8")
        found = list(csv.reader(io.StringIO(text)))
        assert len(found) == rows + 1
        figure = next(one for one in report.figures if one.name == name)
        if name == "accuracy":
            assert waiting.value.suggested_filename == "accuracy.csv"
            assert found[0] == list(figure.table.heads)
            assert [float(cell) for cell in found[30]] == pytest.approx(
                figure.table.rows[29], rel=1e-5
            )
        else:
            assert found[1][:3] == ["fedavg", "client-0", "1"]
            assert float(found[1][3]) == pytest.approx(figure.heats[0].values[0][0], rel=1e-3)


def test_a_figure_is_saved_as_svg_with_its_legend(page_file, opened):
    page = opened(page_file)
    page.locator("#figure-accuracy summary").click()
    with page.expect_download() as waiting:
        page.locator("#figure-accuracy").get_by_role("button", name="SVG").click()
    assert waiting.value.suggested_filename == "accuracy.svg"
    text = waiting.value.path().read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert text.count("legendtext") == 3


def test_names_do_no_harm(tmp_path, opened, screenshot):
    for number, name in enumerate(HOSTILE[:4]):
        notes = {"critical": True, "angles": True, "bad": HOSTILE[0]}
        write_run(
            tmp_path / "runs" / f"{number}<b>\"'", rule=name, ids=HOSTILE, data=HOSTILE[0], **notes
        )
    write_run(
        tmp_path / "runs" / "<script>window.harmed=4</script>"[:12],
        rule=HOSTILE[5],
        ids=HOSTILE,
        data=HOSTILE[1],
        done=3,
    )
    report = build_report([tmp_path / "runs"])
    page = opened(
        write_report(report, tmp_path / "hostile.html"), 390, 844, wait="body[data-ready]"
    )
    names = draw_all(page)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.evaluate("document.querySelectorAll('.more').forEach(one => one.click())")
    assert page.evaluate("window.harmed") is None
    assert (
        page.locator("main img, main style, main a, main script, header script, header img").count()
        == 0
    )
    assert page.locator("#figure-weights a").count() == 0
    shown = set(page.locator("#figure-weights tbody td:nth-child(2)").all_inner_texts())
    assert {HOSTILE[0], HOSTILE[3]} <= shown
    assert (
        page.locator("#figure-weights td[title='" + "x" * 300 + "']").count() > 0
    )  # long names are whole in a title
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.plot')].flatMap(plot => [
            ...plot.data.flatMap(trace => [trace.name, trace.x, trace.y]), plot.layout.annotations,
            Object.values(plot.layout).map(axis => axis?.ticktext),
        ]).map(part => JSON.stringify(part) || '').join(' ')"""
    )
    assert "&lt;script&gt;" in drawn
    assert "<" not in drawn  # plotly reads tags in its text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, "report-hostile")
    with page.expect_download() as waiting:
        page.locator("#figure-weights").get_by_role("button", name="Download CSV").click()
    found = list(csv.reader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert "'=HYPERLINK(0)" in {row[1] for row in found}  # no spreadsheet runs it
    assert len(names) == len(report.figures)


@pytest.mark.parametrize(
    "attempt", ["fetch('http://127.0.0.1:9/')", "new Image().src = 'http://127.0.0.1:9/'"]
)
def test_the_page_may_not_speak_to_anyone(page_file, browser, attempt):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    refused = page.evaluate(
        "() => new Promise(done => {"
        "document.addEventListener('securitypolicyviolation', event => "
        "done(event.violatedDirective));"
        "setTimeout(() => done('nobody refused'), 5000);"
        f"Promise.resolve({attempt}).catch(() => 0); }})"
    )
    page.close()
    assert refused in ("connect-src", "img-src")


def test_script_in_the_page_does_not_run_unless_it_is_ours(report, tmp_path, browser):
    text = render_html(report).replace(
        "<main>", "<main><script>window.harmed = 1</script><b onclick='window.harmed = 2'>b</b>"
    )
    (tmp_path / "changed.html").write_text(text)
    page = browser.new_page()
    page.goto((tmp_path / "changed.html").as_uri())
    page.wait_for_selector("#summary table")
    page.locator("main > b").click()
    assert page.evaluate("window.harmed") is None
    page.close()


def test_print_draws_all_figures_and_opens_the_tables(
    page_file, report, opened, screenshot, tmp_path
):
    page = opened(page_file)
    page.evaluate(
        """() => window.addEventListener('beforeprint', () => {
            const widths = [...document.querySelectorAll('.plot .main-svg:first-child')].map(svg => svg.clientWidth);
            const closed = document.querySelectorAll('details:not([open])').length;
            window.seen = [document.querySelectorAll('figure[data-drawn]').length, closed, Math.max(...widths)];
        })"""
    )
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert page.evaluate("window.seen") == [len(report.figures), 0, 690]
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert page.locator("figure details[open]").count() == 0  # as it was
    names = draw_all(page)
    heights = [
        page.locator(f"#{name} .plot").evaluate(
            "p => [p.clientHeight, p.querySelector('.main-svg').clientHeight]"
        )
        for name in names
    ]
    assert all(box == drawn for box, drawn in heights), dict(zip(names, heights, strict=True))
    wide = page.locator("#figure-accuracy .plot").evaluate(
        "p => [p.clientWidth, p.layout.autosize]"
    )
    assert wide == [page.locator("#figure-accuracy").evaluate("f => f.clientWidth"), True]
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    screenshot(page, "report-print")


def test_a_long_table_is_whole_on_paper_and_short_again_after(tmp_path, opened):
    report = build_report([write_run(tmp_path / "run", rounds=60)])
    page = opened(write_report(report, tmp_path / "long.html"))
    count = "() => [...document.querySelectorAll('.table')].map(box => box.querySelectorAll('tbody tr').length)"
    before = page.evaluate(count)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(count) == [
        len(report.summary.rows),
        *(len(figure.table.rows) for figure in report.figures),
    ]
    assert page.locator(".more").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(count) == before
    assert max(before) == 30


def test_a_large_comparison_is_small_and_draws_only_what_is_seen(tmp_path, opened, screenshot):
    file = write_large_page(tmp_path)
    assert file.stat().st_size < 6e6
    page = opened(file)
    figures = page.locator("figure")
    drawn = page.locator("figure[data-drawn]")
    assert (
        0 < drawn.count() <= figures.count() // 2
    )  # the others wait until the reader scrolls to them
    button = page.locator("#figure-accuracy .legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    page.locator("#figure-weights").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-weights[data-drawn] .heatmaplayer image", timeout=120_000)
    screenshot(page, "report-large", whole=False)
