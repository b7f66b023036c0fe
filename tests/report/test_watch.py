"""The live page: what the server answers, and a browser that follows a run to its end and beyond."""

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.report._watch import Watch
from steelyard.runs._directory import ROUNDS
from tests.report.runs import record, write_run


@contextmanager
def serving(*directories, **options):
    server = Watch(directories, **options)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(address, **headers):
    with urllib.request.urlopen(
        urllib.request.Request(address, headers=headers), timeout=60
    ) as answer:
        return answer.status, answer.read(), answer.headers


def append(run, number, ids=("a", "b", "c", "d")):
    line = json.dumps(record(number, ids, np.random.default_rng(number)))
    with open(run / ROUNDS, "a") as file:
        file.write(line + "\n")


def test_the_page_and_its_data_are_served_and_nothing_else(tmp_path):
    run = write_run(tmp_path / "run", done=5)
    with serving(run) as server:
        assert server.address.startswith("http://127.0.0.1:")
        status, page, _ = get(server.address)
        assert status == 200
        assert b"connect-src &#x27;self&#x27;" in page
        status, body, headers = get(f"{server.address}data?have=")
        news = json.loads(body)
        assert headers["Cache-Control"] == "no-store"
        assert news["report"]["unfinished_runs"] == 1
        assert get(f"{server.address}data?have={news['version']}")[0] == 204
        for path in ("config.json", "../run/config.json", "data/../x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(server.address + path)


def test_another_sites_name_for_this_machine_is_refused(tmp_path):
    run = write_run(tmp_path / "run", done=5)
    with serving(run) as server, pytest.raises(urllib.error.HTTPError, match="403"):
        get(f"{server.address}data", Host="evil.example")


def test_news_come_when_a_round_is_added_and_when_a_run_begins(tmp_path):
    run = write_run(tmp_path / "runs" / "one", done=5)
    with serving(tmp_path / "runs") as server:
        first = json.loads(get(f"{server.address}data")[1])
        append(run, 6)
        second = json.loads(get(f"{server.address}data?have={first['version']}")[1])
        assert len(second["report"]["figures"][0]["lines"][0]["x"]) == 6
        write_run(tmp_path / "runs" / "two", rule="fedadp", done=2)
        third = json.loads(get(f"{server.address}data?have={second['version']}")[1])
        assert len(third["report"]["figures"][0]["lines"]) == 2


def test_a_run_without_rounds_is_waited_for_and_a_half_line_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", done=0)
    with serving(run) as server:
        news = json.loads(get(f"{server.address}data")[1])
        assert news["state"].startswith("Waiting: ")
        assert "report" not in news
        append(run, 1)
        with open(run / ROUNDS, "a") as file:
            file.write('{"round": 2, "wei')
        assert json.loads(get(f"{server.address}data")[1])["report"]["summary"]["rows"][0][2] == 1


def test_a_page_is_told_of_what_nobody_thought_of(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise TypeError("unheard of")

    run = write_run(tmp_path / "run", done=5)
    with serving(run) as server:
        with monkeypatch.context() as patch:
            patch.setattr("steelyard.report._watch.build_report", fail)
            assert (
                "cannot be shown (TypeError: unheard of"
                in json.loads(get(f"{server.address}data")[1])["state"]
            )
        append(run, 6)
        assert "report" in json.loads(get(f"{server.address}data")[1])


def test_what_cannot_be_served_is_said_at_once(tmp_path):
    with pytest.raises(SteelyardError, match="no such directory"):
        Watch([tmp_path / "nowhere"])
    with serving(tmp_path) as server, pytest.raises(SteelyardError, match="cannot be used"):
        Watch([tmp_path], port=server.server_port)


def test_the_page_follows_a_run_to_its_end_and_survives_the_server(tmp_path, opened, screenshot):
    run = write_run(tmp_path / "run", rounds=8, done=5)
    with serving(tmp_path) as server:
        page = opened(server.address, allowed=server.address)
        state = page.locator("#state")
        assert "1 unfinished" in state.inner_text()
        page.locator("#figure-accuracy summary").click()
        page.locator("#figure-accuracy th button").first.click()
        page.locator("#figure-accuracy th button").first.click()
        page.locator("#configuration summary").click()
        for number in (6, 7, 8):
            append(run, number)
        page.get_by_text("all runs are finished").wait_for(timeout=60_000)
        assert page.locator("#figure-accuracy tbody tr").count() == 8
        assert (
            page.locator("#figure-accuracy td").first.inner_text() == "8"
        )  # still sorted as the reader asked
        assert (
            page.locator("#figure-accuracy .plot").evaluate("plot => plot.data.at(-1).x.length")
            == 8
        )
        assert (
            page.locator("#configuration details[open]").count() == 1
        )  # and what the reader opened is open
        assert page.locator("#figure-accuracy details[open]").count() == 1
        screenshot(page, "watch")
    page.get_by_text("The server has stopped").wait_for(timeout=60_000)
    assert page.locator("#figure-accuracy tbody tr").count() == 8
    page.wait_for_timeout(500)  # the browser may still write to its console
    assert all(
        "ERR_CONNECTION_REFUSED" in text for text in opened.complaints
    )  # the browser's own note on its console
    opened.complaints.clear()
    page.close()
