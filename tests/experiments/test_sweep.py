"""sweep.toml, and what is run for it."""

import json
import shutil

import numpy as np
import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.experiments import _jobs as module
from steelyard.experiments._run_groups import Run, format_labels, read_runs
from steelyard.experiments._sweep import plan, read_sweep, run_sweep
from tests.experiments.jobs import Diary, Here

TINY = {"rounds": 2, "data": {"clients": 4}, "participation": {"share": 0.5}}
FILE = """
name = "awa-vs-avg"
out = "runs/here"
target = 0.5
[base]
rounds = 2
[base.data]
clients = 4
[grid]
weighting = ["fedavg", "fedawa:steps=2"]
data.partition = ["iid", "dirichlet:0.1"]
"local.lr" = [0.1, 1]
seed = [1, 2]
"""


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(module, "Child", Here)


def test_a_grid_is_every_combination(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(FILE)
    sweep = read_sweep(file)
    assert (sweep.name, str(sweep.out), sweep.target, sweep.seeds) == (
        "awa-vs-avg",
        "runs/here",
        0.5,
        2,
    )
    assert sweep.axes == ("weighting", "data.partition", "local.lr", "seed")
    assert len(sweep.jobs) == 16
    last = sweep.jobs[-1]
    assert last.name == "fedawa-steps-2-dirichlet-0.1-lr-1/seed-2"
    assert last.labels == {
        "weighting": "fedawa:steps=2", "data.partition": "dirichlet:0.1", "local.lr": "1", "seed": "2",
    }  # fmt: skip
    assert (last.config.local.lr, last.config.seed, last.config.data.clients) == (1, 2, 4)
    assert last.config.target is None  # the sweep's target ends no run
    assert sweep.notes == ()


def test_cases_are_an_axis_of_their_own():
    cases = [{"label": "Fed/Cos", "client": "fedcos:mu=0.02"}, {"label": "plain"}]
    sweep = plan({"base": TINY, "grid": {"seed": [1, 2]}, "case": cases})
    assert [job.name for job in sweep.jobs] == [
        "Fed-Cos/seed-1", "Fed-Cos/seed-2", "plain/seed-1", "plain/seed-2",
    ]  # fmt: skip
    assert [job.config.client for job in sweep.jobs] == ["fedcos:mu=0.02"] * 2 + [None] * 2
    assert sweep.axes == ("case", "seed")
    assert sweep.name == "sweep"
    about_data = plan({"base": TINY, "case": [{"label": "iid", "data": {"partition": "iid"}}]})
    assert about_data.axes == ("setting", "seed")  # not paired with one another
    assert about_data.jobs[0].config.data.partition == "iid"


def test_one_seed_gets_a_note():
    sweep = plan({"base": {**TINY, "seed": 7}})
    assert [job.name for job in sweep.jobs] == ["seed-7"]
    assert sweep.notes == (
        "one seed (7) says nothing about noise: use several, such as seed = [1, 2, 3] in [grid]",
    )


def test_names_that_would_be_the_same_are_told_apart():
    partitions = ["dirichlet:0.1", "dirichlet:alpha=0.1", "dirichlet:alpha-0.1"]
    with pytest.raises(SteelyardError, match="partition"):
        plan({"grid": {"data.partition": partitions}})
    names = [
        job.name for job in plan({"grid": {"client": ["fedprox:mu=0.1", "fedprox:mu= 0.1"]}}).jobs
    ]
    assert len(set(names)) == 2
    assert all(name.startswith("fedprox-mu-0.1-") for name in names)
    long = plan({"case": [{"label": "x" * 300}, {"label": "../.."}]})
    assert [len(job.name) < 130 for job in long.jobs] == [True, True]
    assert long.jobs[1].name == "case/seed-0"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"gird": {}}, "unknown key 'gird': did you mean 'grid'?"),
        ({"rounds": 3}, "unknown key 'rounds': keys of a run go below [base]"),
        ({"zzz": 3}, "unknown key 'zzz': known: name, out"),
        ({"base": {"ruonds": 3}}, "unknown key 'ruonds': did you mean 'rounds'?"),
        ({"grid": {"wieghting": ["fedavg"]}}, "unknown key 'wieghting': did you mean 'weighting'?"),
        ({"grid": {"weighting": ["fedwa"]}}, "did you mean 'fedawa'?"),
        ({"grid": {"lr": [0.1]}}, "unknown key 'lr': did you mean 'local.lr'?"),
        ({"grid": {"seed": 3}}, "grid.seed = 3: use a list of values"),
        ({"grid": {"seed": []}}, "grid.seed = []: use a list of values"),
        ({"grid": {"seed": [1, 1]}}, "grid.seed: '1' is given twice"),
        ({"grid": {"rounds.x": [1]}, "base": {"rounds": 2}}, "'rounds' is a value, not a section"),
        ({"grid": {"seed": list(range(20000))}}, "20000 runs"),
        ({"grid": 3}, "grid = 3: use a section [grid]"),
        ({"case": "x"}, "case = 'x': use sections [[case]]"),
        ({"case": [{"client": "fedcos"}]}, "case 1 has no label"),
        ({"case": [3]}, "case 1 has no label"),
        ({"case": [{"label": "a"}, {"label": "a"}]}, "case 2: the label 'a' is taken"),
        (
            {"case": [{"label": "a", "seed": 1}], "grid": {"seed": [1]}},
            "'seed' is in [grid] and in a [[case]]",
        ),
        ({"target": 90}, "target = 90: use an accuracy in (0, 1]"),
        ({"target": True}, "target = True: use an accuracy"),
        ({"name": 3}, "name = 3: use text"),
    ],
)
def test_mistakes_are_named(raw, message):
    with pytest.raises(SteelyardError) as caught:
        plan(raw, "s.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("s.toml: ")


SWEEP = {"target": 0.1, "base": TINY, "grid": {"weighting": ["fedavg", "fedadp"], "seed": [1, 2]}}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Child", Here)
        return out, run_sweep(plan(SWEEP), out)


@pytest.fixture
def swept(original, tmp_path, here):
    """The sweep, a copy of its directory, and what it came to."""
    out = shutil.copytree(original[0], tmp_path / "out")
    return plan(SWEEP), out, original[1]


def test_a_sweep_leaves_its_results(swept):
    sweep, out, summary = swept
    page = (out / "results.md").read_text()
    assert summary.table.markdown() in page
    assert "fedadp is" in page or "are equal" in page
    assert "## Failed" not in page
    assert (out / "results.tex").read_text().startswith(summary.table.latex())
    assert (out / "table.csv").read_text() == summary.table.csv()
    rows = (out / "results.csv").read_text().splitlines()
    assert rows[0].startswith("name,weighting,seed,last10,best,")
    assert [row.split(",")[0] for row in rows[1:]] == [job.name for job in sweep.jobs]
    assert not list(out.glob(".*"))
    assert summary.failed == summary.start_differences == ()


def test_a_table_of_any_recorded_number(swept):
    sweep, out, _ = swept
    summary = run_sweep(sweep, out, metric="mean(update_norm,1-2)")
    assert summary.table.title.startswith("mean of update_norm, rounds 1 to 2")
    by_name = {job.name: steelyard.History.read(out / job.name) for job in sweep.jobs}
    for name, (cell,) in summary.table.rows:
        norms = [history.column("update_norm") for key, history in by_name.items() if name in key]
        assert cell.mean == pytest.approx(np.mean(norms))
    assert "mean(update" in (out / "results.md").read_text().replace("\\", "")


def test_rows_are_written_as_runs_finish(tmp_path, here):
    counts = []

    class Counting(Diary):
        def on_finish(self, outcome):
            counts.append(len((tmp_path / "results.csv").read_text().splitlines()))

    run_sweep(
        plan({**SWEEP, "base": {**TINY, "rounds": 1}}), tmp_path, watch=Counting(), parallel=1
    )
    assert counts == [2, 3, 4, 5]


def test_the_same_seed_is_the_same_start_for_every_algorithm(swept):
    """From what the runs wrote down: data, partition, initial model and cohorts."""
    _, out, _ = swept
    starts = {}
    for path in sorted(out.glob("*/seed-*")):
        resolved = json.loads((path / "config.json").read_text())["resolved"]
        cohorts = (path / "cohorts.json").read_text()
        starts.setdefault(path.name, set()).add(
            (resolved["data"]["fingerprint"], resolved["model"]["initial"], cohorts)
        )
    assert [len(one) for one in starts.values()] == [1, 1]
    assert starts["seed-1"] != starts["seed-2"]


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (
            "config.json",
            lambda c: c["resolved"]["data"].update(fingerprint="0"),
            "other data or another partition",
        ),
        (
            "config.json",
            lambda c: c["resolved"]["model"].update(initial="0"),
            "another initial model",
        ),
        ("cohorts.json", lambda c: c[1].reverse(), "other cohorts from round 2 on"),
    ],
)
def test_runs_that_did_not_start_alike_are_flagged(swept, file, change, said):
    sweep, out, _ = swept
    path = out / "fedadp" / "seed-2" / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    summary = run_sweep(sweep, out)
    (sentence,) = summary.start_differences
    assert sentence.startswith(f"fedavg (seed 2) and fedadp (seed 2) did not start alike ({said})")
    assert said in (out / "results.md").read_text()


def test_settings_are_not_paired(tmp_path, here):
    """Another partition is another start, and no fault."""
    sweep = plan(
        {
            "base": TINY,
            "grid": {"data.partition": ["iid", "shards:2"], "weighting": ["fedavg", "uniform"]},
        }
    )
    assert run_sweep(sweep, tmp_path).start_differences == ()


def test_failures_are_on_the_page(tmp_path, here):
    raw = {"base": {**TINY, "rounds": 3}, "grid": {"local.lr": [0.1, 1e30], "seed": [1, 2]}}
    summary = run_sweep(plan(raw), tmp_path)
    assert [outcome.job.name for outcome in summary.failed] == [
        "lr-1e+30/seed-1",
        "lr-1e+30/seed-2",
    ]
    page = (tmp_path / "results.md").read_text()
    assert "## Failed" in page
    assert "rounds in a row were void" in page
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 3
    nothing = run_sweep(plan({**raw, "grid": {"local.lr": [1e30]}}), tmp_path / "other")
    assert nothing.table.rows == ()


def test_rounds_need_a_target(tmp_path):
    with pytest.raises(SteelyardError, match="no target is given"):
        run_sweep(plan({"base": TINY}), tmp_path, metric="rounds")
    assert list(tmp_path.iterdir()) == []


def test_runs_are_read_back_from_directories(swept):
    _, out, _ = swept
    runs, notes = read_runs([out])
    assert notes == []
    assert [(format_labels(run.algorithm), run.seed) for run in runs] == [
        ("fedadp", "1"), ("fedadp", "2"), ("fedavg", "1"), ("fedavg", "2"),
    ]  # fmt: skip
    assert {run.setting for run in runs} == {()}
    log = out / "fedavg" / "seed-2" / "rounds.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    runs, notes = read_runs([out])
    assert len(runs) == 3
    assert "unfinished (1 of 2 rounds), left out" in notes[0]
    again = shutil.copytree(out / "fedadp" / "seed-1", out / "copy")
    (again / "rounds.jsonl").touch()
    runs, (_, note) = read_runs([out])
    assert [run.path for run in runs if format_labels(run.algorithm) == "fedadp"] == [
        again,
        out / "fedadp" / "seed-2",
    ]
    assert note == f"{out / 'fedadp' / 'seed-1'}: the same run as {again}, left out"
    shutil.copyfile(out / "fedadp" / "seed-2" / "cohorts.json", again / "cohorts.json")
    with pytest.raises(
        SteelyardError,
        match=r"both fedadp, seed 1, and are not the same run \(other cohorts .* give one",
    ):
        read_runs([out])
    with pytest.raises(SteelyardError, match="holds no run"):
        read_runs([out / "nowhere"])


def test_labels_for_people():
    assert format_labels((("weighting", "fedavg"), ("client", "none"))) == "fedavg"
    assert format_labels(
        (("weighting", "fedavg"), ("client", "fedcos:mu=0.1"), ("local.lr", "0.1"))
    ) == ("fedavg + fedcos:mu=0.1 lr=0.1")
    setting = (("model", "none"), ("data.partition", "iid"), ("data.clients", "10"))
    assert format_labels(setting) == "iid, model=none, clients=10"


def test_an_outcome_as_a_run(swept):
    sweep, out, _ = swept
    (outcome,) = module.run_jobs(sweep.jobs[:1], out)
    run = Run.of(outcome)
    assert (run.algorithm, run.setting, run.seed) == ((("weighting", "fedavg"),), (), "1")
