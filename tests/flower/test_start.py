"""`start` on versions of Flower to come, and after a resume; the example as an app of Flower Hub."""

import logging
import re
import tomllib

import flwr
import pytest
from flwr.serverapp.strategy import Strategy
from packaging.requirements import Requirement
from packaging.version import Version

import steelyard.flower
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.example import APP


class Newer(steelyard.flower.Steelyard):
    """A subclass that passes what the next Flower takes."""

    def start(self, *args, **options):
        return super().start(*args, should_stop=lambda: False, **options)


@pytest.fixture
def seen(monkeypatch):
    """The options that reach Flower's own `start`, which takes one more, as that of Flower 1.43 does."""
    seen, real = [], Strategy.start

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
        should_stop=None,
    ):
        seen.append(should_stop)
        configs = (train_config, evaluate_config)
        return real(self, grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn)

    monkeypatch.setattr(Strategy, "start", start)
    return seen


def newer():
    return Newer("fedavg", min_train_nodes=runs.COUNT, fraction_evaluate=0.0, seed=3)


def test_an_option_that_flower_takes_is_passed_on(seen):
    runs.start(newer(), rounds=1)
    assert [option() for option in seen] == [False]


def test_any_option_where_flower_takes_all(monkeypatch):
    seen, real = [], Strategy.start

    def start(self, *args, later=None, **options):
        seen.append((later, options))
        return real(self, *args)

    monkeypatch.setattr(Strategy, "start", start)
    runs.start(runs.strategy("fedavg"), rounds=1, later=1, latest=2)
    assert seen == [(1, {"latest": 2})]


@pytest.mark.skipif(Version(flwr.__version__) >= Version("1.43"), reason="this Flower may take it")
def test_an_option_that_flower_does_not_take_is_named(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = runs.start(newer(), rounds=1)
    assert result.arrays
    assert (
        f"start(should_stop=) is ignored: flwr {flwr.__version__} does not have it" in caplog.text
    )


def logged_rounds(caplog):
    return re.findall(r"\[ROUND (\d+/\d+)\]", caplog.text)


def test_the_log_counts_rounds_as_the_run_does(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        runs.start(runs.strategy("fedavg", out=tmp_path), rounds=2)
        assert logged_rounds(caplog) == ["1/2", "2/2"]
        caplog.clear()
        runs.start(runs.strategy("fedavg", out=tmp_path, resume=True), rounds=4)
    assert logged_rounds(caplog) == ["3/4", "4/4"]
    assert [record["round"] for record in read_log(tmp_path)] == [1, 2, 3, 4]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        runs.start(runs.strategy("fedavg"), rounds=1)  # nothing is left of it
    assert logged_rounds(caplog) == ["1/1"]


def test_the_example_is_an_app_for_flower_hub():
    config = tomllib.loads((APP / "pyproject.toml").read_text())
    app = config["tool"]["flwr"]["app"]
    (bound,) = (
        Requirement(text) for text in config["project"]["dependencies"] if text.startswith("flwr")
    )
    ours = tomllib.loads((APP.parent.parent / "pyproject.toml").read_text())
    (extra,) = ours["project"]["optional-dependencies"]["flower"]
    assert bound == Requirement(extra)
    assert app["fab-format-version"] == 1
    assert Version(app["flwr-version-target"]) in bound.specifier
    assert (APP / config["project"]["license"]["file"]).read_text() == (
        APP.parent.parent / "LICENSE"
    ).read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Flower imports
def test_flower_builds_it():
    build = pytest.importorskip("flwr.cli.build", reason="the command line of another Flower")
    if not hasattr(build, "build_fab_from_files"):
        pytest.skip("the command line of another Flower")
    files = {
        str(path.relative_to(APP)): path
        for path in APP.rglob("*")
        if path.suffix in (".py", ".toml", ".md", "")
    }
    bundle, metadata = build.build_fab_from_files(
        {name: path for name, path in files.items() if path.is_file()}
    )
    assert bundle
    assert (metadata.fab_format_version, metadata.flwr_version_min) == (1, "1.31")
