"""From run directories to figures: means, bands, unfinished runs, targets, marks, who is shown."""

import json
import math
import re
import statistics

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.report import _client_figures as client_figures
from steelyard.report._build import build_report, find_figure, render_html, write_report
from steelyard.report._figures import DASHES, INKS, Heat, Table, choose_style, shorten_name
from steelyard.report._series import group_consecutive
from steelyard.runs._directory import CLIENTS, COHORTS, CONFIG, ENVIRONMENT, ROUNDS
from steelyard.runs._history import History
from tests.report.runs import comparison, write_run
from tests.sim.runs import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return comparison(tmp_path_factory.mktemp("runs") / "runs")


@pytest.fixture(scope="module")
def report(folder):
    return build_report([folder], out="out dir/report.html")


def edit(path, change):
    lines = [json.loads(line) for line in (path / ROUNDS).read_text().splitlines()]
    (path / ROUNDS).write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def test_every_figure_the_page_promises_is_there(report):
    assert [figure.name for figure in report.figures] == [
        "accuracy", "loss", "rounds", "weights", "effective_clients", "gamma", "critical", "angles", "coherence",
        "update_norm", "mean_cosines", "cosines", "partition", "quarantined", "timings",
    ]  # fmt: skip
    for figure in report.figures:
        assert figure.table.rows, figure.name
        assert {len(row) for row in figure.table.rows} == {len(figure.table.heads)}, figure.name
        assert figure.caption.endswith("."), figure.name


def test_seeds_become_a_mean_with_a_band_of_one_deviation(report, folder):
    line = find_figure(report, "accuracy").lines[0]
    both = [History.read(folder / f"avg-{seed}").column("accuracy") for seed in (0, 1)]
    for at, values in enumerate(zip(*both, strict=True)):
        middle, spread = 100 * statistics.mean(values), 100 * statistics.stdev(values)
        assert line.y[at] == pytest.approx(middle)
        assert (line.low[at], line.high[at]) == pytest.approx((middle - spread, middle + spread))
    table = find_figure(report, "accuracy").table
    assert table.heads[:3] == ("round", "fedavg", "± fedavg")
    assert table.rows[3][1:3] == pytest.approx((line.y[3], line.high[3] - line.y[3]))


def test_the_summary_has_the_measures_of_the_papers(report, folder):
    row = dict(zip(report.summary.heads, report.summary.rows[1], strict=True))
    last = [
        100 * statistics.mean(History.read(folder / f"law-{s}").column("accuracy")[-10:])
        for s in (0, 1)
    ]
    assert row["series"] == "fedlaw"
    assert row["last 10, %"] == pytest.approx(statistics.mean(last))
    assert row["±"] == pytest.approx(statistics.stdev(last))
    assert row["seconds"] == pytest.approx(20 * 0.61)
    assert "rounds to 70 %" in row


def test_one_run_has_no_band_and_no_deviation(tmp_path):
    report = build_report([write_run(tmp_path / "one")])
    assert find_figure(report, "accuracy").lines[0].low == ()
    assert find_figure(report, "accuracy").caption.startswith("One seed")
    assert report.summary.rows[0][4] is None
    assert report.title == "fedavg on digits"


def test_an_unfinished_run_is_shown_apart_and_said_to_be(tmp_path):
    write_run(tmp_path / "done", seed=0)
    write_run(tmp_path / "going", seed=1, done=7)
    report = build_report([tmp_path])
    names = [line.name for line in find_figure(report, "accuracy").lines]
    assert names == ["fedavg", "fedavg, seed 1, unfinished"]
    assert [len(line.x) for line in find_figure(report, "accuracy").lines] == [20, 7]
    assert report.unfinished_runs == 1
    assert report.notes == (f"{tmp_path / 'going'}: unfinished (7 of 20 rounds)",)


def test_a_mean_is_over_rounds_that_all_seeds_have(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", seed=seed, rounds=20)
    edit(tmp_path / "1", lambda r: r if r["round"] % 2 == 0 else r | {"accuracy": None})
    assert find_figure(build_report([tmp_path]), "accuracy").lines[0].x == tuple(range(2, 21, 2))


def test_targets_are_the_users_else_the_runs_else_round_numbers(tmp_path, folder):
    assert find_figure(build_report([folder], target=0.55), "rounds").categories == ("55 %",)
    assert find_figure(build_report([folder]), "rounds").categories == ("60 %", "70 %", "80 %")
    run = write_run(tmp_path / "own")
    stored = json.loads((run / CONFIG).read_text())
    (run / CONFIG).write_text(
        json.dumps(stored | {"config": {"target": 0.42, "seed": 0, "weighting": "fedavg"}})
    )
    reach = find_figure(build_report([run]), "rounds")
    assert reach.categories == ("42 %",)
    assert reach.bars[0].values == (History.read(run).rounds_to(0.42),)
    with pytest.raises(SteelyardError, match=r"target=7: use an accuracy"):
        build_report([folder], target=7)


def test_a_table_as_text():
    table = Table(("a", "b", "c"), (("x", 1.2345678, 7), (None, 2.0, 3.14159)), (None, 2, None))
    assert table.texts() == [["x", "1.23", "7"], ["–", "2.00", "3.142"]]


def test_seeds_that_miss_a_target_are_counted(tmp_path):
    write_run(tmp_path / "0", seed=0, level=0.9)
    write_run(tmp_path / "1", seed=1, level=0.5)
    reach = find_figure(build_report([tmp_path], target=0.8), "rounds")
    assert reach.table.rows[0][2] == "1 of 2"
    summary = build_report([tmp_path], target=0.8).summary
    assert (
        dict(zip(summary.heads, summary.rows[0], strict=True))["rounds to 80 %"]
        == "1 of 2 got there"
    )


def test_critical_periods_are_shaded_and_belong_to_their_series(report):
    spans = find_figure(report, "accuracy").spans
    assert [(span.name, span.start, span.end) for span in spans] == [
        ("pa3fed:beta=0.2", 1, 6),
        ("pa3fed:beta=0.2", 11, 12),
    ]
    assert find_figure(report, "critical").table.rows[0] == ("seed 0: pa3fed:beta=0.2", 8, 20)
    assert group_consecutive([1, 2, 5, 7, 8]) == [(1, 2), (5, 5), (7, 8)]


def test_the_critical_point_is_where_coherence_comes_near_zero(report):
    marks = find_figure(report, "coherence").marks
    assert [mark.x for mark in marks] == [
        15,
        15,
        15,
    ]  # 0.3 - 0.02 t is 0 there, 0.02 = 7 % of the peak before
    assert "Here: round 15 of fedavg" in find_figure(report, "coherence").caption


def test_weights_have_a_row_for_clients_that_were_never_asked(tmp_path):
    run = write_run(tmp_path / "run", ids=("a", "b", "c"))
    edit(run, lambda r: r | {"weights": {"b": 1.0}})
    figure = find_figure(build_report([run]), "weights")
    assert figure.heats[0].rows == ("a", "b", "c")
    assert figure.heats[0].values[0] == (None,) * 20
    assert figure.heats[0].values[1] == (1.0,) * 20
    assert figure.table.rows[0] == ("fedavg", "a", None, None, None, 0)


def test_many_clients_are_cut_and_many_rounds_averaged(tmp_path, monkeypatch):

    monkeypatch.setattr(client_figures, "MAX_ROWS", 3)
    monkeypatch.setattr(client_figures, "MAX_CELLS", 30)
    run = write_run(tmp_path / "run", ids=tuple("abcde"))
    edit(
        run,
        lambda r: (
            r | {"weights": {k: float(r["round"]) for k in "abcde" if k != "a" or r["round"] < 5}}
        ),
    )
    figure = find_figure(build_report([run]), "weights")
    assert figure.heats[0].rows == ("b", "c", "d")  # a took part least
    assert figure.heats[0].columns == tuple(map(str, range(1, 21, 2)))
    assert figure.heats[0].values[0][:2] == (1.5, 3.5)
    assert "3 of 5 clients are shown" in figure.caption
    assert "A column is the mean of 2 rounds." in figure.caption


def test_the_partition_shows_those_who_took_part_most_and_says_so(tmp_path, monkeypatch):

    monkeypatch.setattr(client_figures, "MAX_ROWS", 3)
    run = write_run(tmp_path / "run", ids=tuple("abcde"))
    edit(run, lambda r: r | {"weights": {k: 0.2 for k in "abcde" if k != "a" or r["round"] < 5}})
    figure = find_figure(build_report([run]), "partition")
    assert figure.heats[0].rows == ("b", "c", "d")
    held = json.loads((run / CLIENTS).read_text())["counts"]
    assert [row[3:] for row in figure.table.rows] == [tuple(row) for row in held[1:4]]
    assert "3 of 5 clients are shown, those that took part most often." in figure.caption


def test_many_quarantined_clients_are_cut_and_that_is_said(tmp_path, monkeypatch):

    monkeypatch.setattr(client_figures, "MAX_BARS", 2)
    run = write_run(tmp_path / "run")
    edit(run, lambda r: r | {"quarantined": dict.fromkeys("abcd"[: r["round"] % 4], "holds NaN")})
    figure = find_figure(build_report([run]), "quarantined")
    assert figure.categories == ("a", "b")
    assert len(figure.table.rows) == 3
    assert figure.caption.endswith(
        "2 of 3 clients are shown, those left out most often; the table has all."
    )


def test_the_partition_is_the_one_that_was_run(tmp_path):
    simulate("fedavg", out=tmp_path / "run", rounds=2)
    held = json.loads((tmp_path / "run" / CLIENTS).read_text())
    figure = find_figure(build_report([tmp_path / "run"]), "partition")
    assert figure.heats[0].rows == tuple(held["ids"])
    assert [list(row) for row in figure.heats[0].values] == held["counts"]
    held["counts"][1] = [0, 26, 0]
    (tmp_path / "run" / CLIENTS).write_text(json.dumps(held))
    figure = find_figure(build_report([tmp_path / "run"]), "partition")
    assert figure.heats[0].values[1] == (None, 26, None)  # no sample is no cell
    assert figure.table.rows[1][2:] == (26, 0, 26, 0)
    (tmp_path / "run" / CLIENTS).unlink()  # a run from before there was one
    assert "partition" not in [figure.name for figure in build_report([tmp_path / "run"]).figures]


def test_quarantined_clients_are_counted_with_reasons(report):
    figure = find_figure(report, "quarantined")
    assert figure.categories == ("a",)
    assert figure.table.rows == (("pa3fed:beta=0.2", "a", 8, "holds NaN (8x)"),)


def test_what_a_rule_notes_is_drawn_without_being_known(tmp_path):
    run = write_run(tmp_path / "run")
    edit(
        run,
        lambda r: (
            r
            | {
                "my_number": 2.0 * r["round"],
                "my_dict": {"a": 1.0, "b": -1.0},
                "words": "x",
                "rounds": 3,
                "flag": True,
            }
        ),
    )
    report = build_report([run])
    assert find_figure(report, "my_number").lines[0].y[:2] == (2.0, 4.0)
    assert find_figure(report, "my_dict").heats[0].rows == ("a", "b", "c", "d")
    assert find_figure(report, "rounds").bars  # a rule does not take a figure's name away
    assert not {"words", "flag"} & {figure.name for figure in report.figures}


def test_figures_stay_when_the_first_and_the_last_round_are_void(tmp_path):
    whole = write_run(tmp_path / "whole", gamma=True, angles=True)
    names = [figure.name for figure in build_report([whole]).figures]
    edit(
        whole,
        lambda r: (
            {"round": r["round"], "weights": {}, "void": "nobody"} if r["round"] in (1, 20) else r
        ),
    )
    assert [figure.name for figure in build_report([whole]).figures] == names


def test_what_clients_found_together_is_no_map_of_clients(tmp_path):
    run = write_run(tmp_path / "run")
    before = [figure.name for figure in build_report([run]).figures]
    edit(run, lambda r: r | {"client_evaluation": {"accuracy": 0.5, "loss": 1.2}})
    assert [figure.name for figure in build_report([run]).figures] == before


def test_void_rounds_are_told(tmp_path):
    run = write_run(tmp_path / "run")
    edit(
        run,
        lambda r: (
            {"round": 4, "weights": {}, "void": "no client took part"} if r["round"] == 4 else r
        ),
    )
    assert build_report([run]).notes == (
        "fedavg: 1 rounds were void, the last because: no client took part",
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (CONFIG, "[]", "does not say what was run: leave this directory out"),
        (CONFIG, "{}", "does not say what was run: leave this directory out"),
        (
            CONFIG,
            '{"resolved": {"seed": 0}}',
            "does not say what was run: leave this directory out",
        ),
        (CONFIG, "{", "not JSON: .* leave this directory out"),
        (CLIENTS, "{}", "names no clients: resume"),
        (CLIENTS, "[]", "names no clients: resume"),
        (
            ROUNDS,
            '{"accuracy": 0.1}\n',
            "line 1: not the record of a round: leave this directory out",
        ),
        (ROUNDS, "[]\n", "line 1: not the record of a round: leave this directory out"),
        (ROUNDS, '{"round": 1, "acc\n', "line 1: not JSON: .* resume"),
    ],
)
def test_a_damaged_file_is_named_with_a_cure(tmp_path, name, text, why):
    run = write_run(tmp_path / "run")
    (run / name).write_text(text)
    with pytest.raises(SteelyardError, match=f"{re.escape(str(run / name))}.*{why}"):
        build_report([tmp_path])


def test_what_is_only_good_to_know_may_be_missing(tmp_path):
    for rule in ("fedavg", "fedadp"):
        write_run(tmp_path / rule, rule=rule)
    (tmp_path / "fedavg" / COHORTS).unlink()
    (tmp_path / "fedavg" / ENVIRONMENT).write_text("[]")
    edit(tmp_path / "fedavg", lambda r: r | {"timings": {"train": 1.0}} if r["round"] == 3 else r)
    report = build_report([tmp_path])
    (note,) = report.notes
    assert note.startswith(f"{tmp_path / 'fedavg' / COHORTS}: cannot be read")
    rows = {row[0]: row for row in find_figure(report, "timings").table.rows}
    assert rows["fedavg"][1:3] == pytest.approx(((19 * 0.5 + 1.0) / 20, 0.01))
    assert report.summary.rows[1][-1] == pytest.approx(19 * 0.61)


def test_runs_that_did_not_start_alike_are_told(tmp_path):
    write_run(tmp_path / "a", rule="fedavg")
    other = write_run(tmp_path / "b", rule="fedadp")
    text = (other / CONFIG).read_text().replace("model-0", "model-9")
    (other / CONFIG).write_text(text)
    assert "another initial model" in build_report([tmp_path]).notes[0]


def test_the_command_makes_the_page_again(report, folder):
    assert report.command == f"steelyard report {folder} -o 'out dir/report.html'"
    assert dict(report.environment)["command"] == "steelyard run 'a b'"


def test_names_that_do_not_exist_are_answered(report, tmp_path):
    with pytest.raises(
        SteelyardError, match="unknown figure 'coherense': did you mean 'coherence'"
    ):
        find_figure(report, "coherense")
    with pytest.raises(SteelyardError, match="holds no run"):
        build_report([tmp_path])
    write_run(tmp_path / "new", done=0)
    with pytest.raises(SteelyardError, match="no run has had a round yet"):
        build_report([tmp_path])


def test_series_are_told_apart_without_colour():
    assert len({choose_style(style)[:2] for style in range(42)}) == 42
    assert len({choose_style(style)[1] for style in range(len(DASHES))}) == len(DASHES)
    assert "#f0e442" not in INKS
    assert shorten_name("pa3fed:score=neg_loss,detector=criticalfl_window") == "pa3fed"
    assert len(shorten_name("x" * 300)) == 32


def test_numbers_that_are_none_leave_no_trace_in_the_page(tmp_path):
    run = write_run(tmp_path / "run")
    edit(
        run, lambda r: r | {"loss": None, "coherence": None, "cosines": dict.fromkeys(r["cosines"])}
    )
    report = build_report([run])
    names = [figure.name for figure in report.figures]
    assert not {"loss", "coherence", "cosines", "mean_cosines"} & set(names)
    assert "NaN" not in json.dumps(report.to_dict(), allow_nan=False)


def test_heat_limits_are_common_and_diverging_ones_centred(report):
    cosines = find_figure(report, "cosines")
    low, high = cosines.limits
    assert low == -high
    assert high == max(abs(v) for heat in cosines.heats for row in heat.values for v in row)
    assert find_figure(report, "weights").limits[0] == 0.0
    assert isinstance(cosines.heats[0], Heat)


def test_the_same_runs_give_the_same_page_and_small_numbers(report, folder, tmp_path):
    assert render_html(report) == render_html(build_report([folder], out="out dir/report.html"))
    data = report.to_dict()
    weight = data["figures"][3]["heats"][0]["values"][0][0]
    assert weight == float(f"{weight:.4g}")
    assert math.isclose(weight, report.figures[3].heats[0].values[0][0], rel_tol=1e-3)
    for path, why in (("x.pdf", "x.pdf"), ("no/x.html", "there is no directory")):
        with pytest.raises(SteelyardError, match=why):
            write_report(report, tmp_path / path)
