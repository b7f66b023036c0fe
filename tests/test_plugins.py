"""Parts of another package, installed beside ours, are found by name everywhere."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import steelyard
from steelyard.cli.app import app
from steelyard.core import _registry as registry
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import RULES, TERMS
from steelyard.core._spec import to_text
from steelyard.data import partition
from steelyard.testing import check_rule, check_term
from tests.rounds import cohort, equal, reports

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "examples" / "plugin"
POINTS = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]


def install(site, package, points, modules):
    """Puts a package into a directory of installed packages: its modules, and what pip writes of it."""
    about = site / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{key} = {value}" for key, value in names.items())
        for group, names in points
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty directory of installed packages that this process and its children see."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(folder)]))
    before = [(each, dict(each._entries), each._complete) for each in registry._REGISTRIES]
    modules = set(sys.modules)
    for each in registry._REGISTRIES:
        each._complete = not each.group
    yield folder
    for each, entries, complete in before:
        each._entries, each._complete = entries, complete
    for name in set(sys.modules) - modules:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def example(site):
    """The example package, installed."""
    install(site, "steelyard-example", POINTS.items(), {})
    (site / "steelyard_example.py").write_text((PACKAGE / "steelyard_example.py").read_text())
    return site


def call(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.usefixtures("example")
def test_rules_are_found_by_name_alone_and_composed():
    base, clients = cohort()
    table = reports(list(clients))
    out = steelyard.aggregate("example_rule:power=0", base, clients, metrics=table)
    torch.testing.assert_close(out.weights, torch.full((6,), 1 / 6, dtype=torch.float64))
    for text in (
        "guard(example_rule|cap:max_weight=0.5)",
        "example_wrapper(fedadp)",
        "gate(example_detector,fedadp)",
    ):
        rule = steelyard.parse_rule(text)
        assert to_text(rule) == text
        assert steelyard.parse_rule(to_text(rule)) == rule
        steelyard.aggregate(rule, base, clients, metrics=table)
    assert to_text(steelyard.parse_rule("example_chain:3")) == "fedadp|example_rule:power=3"
    with pytest.raises(SteelyardError, match="did you mean 'example_rule'"):
        steelyard.parse_rule("example_ruel")
    assert "example_term" in TERMS
    with pytest.raises(SteelyardError, match="'example_term' is a client term, not a rule"):
        steelyard.parse_rule("example_term")


@pytest.mark.usefixtures("example")
def test_they_keep_the_contract():
    check_rule("example_rule")
    check_term("example_term")


@pytest.mark.usefixtures("example")
def test_simulate_with_a_part_of_each_kind():
    history = steelyard.simulate(
        steelyard.Algorithm("example_rule", client="example_term:mu=0.2", server="example_step"),
        "example_blobs",
        "example_net",
        clients=3,
        partition="example_blocks",
        rounds=2,
        executor="serial",
    )
    assert len(history.records) == 2
    assert [
        list(part) for part in partition("example_blocks", np.zeros(4, dtype=np.int64), 2, 0)
    ] == [[0, 1], [2, 3]]
    assert steelyard.parse_refiner("example_refiner").name == "example_refiner"


@pytest.mark.usefixtures("example")
def test_the_command_run(tmp_path):
    settings = {
        "weighting": "example_rule",
        "client": "example_term",
        "server": "example_step",
        "model": "example_net",
        "data.name": "example_blobs",
        "data.partition": "example_blocks",
        "data.clients": 3,
        "rounds": 1,
    }
    chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    text = call("run", *chosen, "--out", tmp_path / "run")
    assert (
        "example_rule client=example_term server=example_step on 3 clients of example_blobs" in text
    )


@pytest.mark.usefixtures("example")
def test_the_command_sweep_finds_them_in_its_workers(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[base]\nrounds = 1\ndata.clients = 3\n[grid]\nweighting = ["fedavg", "example_rule:power=3"]\n'
    )
    text = call("sweep", file, "--out", tmp_path / "sweep")
    assert "example_rule:power=3" in text
    assert "failed" not in text


@pytest.mark.usefixtures("example")
def test_the_command_merge(tmp_path):
    base, clients = cohort(2)
    for name, params in {"base": base, **clients}.items():
        save_file(params, tmp_path / f"{name}.safetensors")
    files = [word for name in clients for word in ("--client", tmp_path / f"{name}.safetensors")]
    merged = tmp_path / "merged.safetensors"
    call(
        "merge",
        "--base",
        tmp_path / "base.safetensors",
        *files,
        "--rule",
        "uniform|example_rule",
        "--out",
        merged,
    )
    assert equal(
        load_file(merged), steelyard.aggregate("uniform|example_rule", base, clients).params
    )


@pytest.mark.usefixtures("example")
def test_the_commands_that_list_and_explain():
    rows = {row["name"]: row for row in json.loads(call("rules", "--json"))}
    assert rows["example_rule"]["kind"] == "rule"
    assert rows["example_detector"]["kind"] == rows["eq6"]["kind"] == "detector"
    assert rows["example_step"]["options"] == {"lr": "0.5"}
    assert "shares to a power" in call("explain", "guard(example_rule)")
    assert "pulls clients back" in call("explain", "example_term")
    assert "gate(example_detector,fedadp)" in call("explain", "example_detector")
    assert "example_net" in call("models", "list", "--json")
    assert "example_blocks" in call("partitions", "list", "--json")
    assert "example_blobs" in call("data", "list")


@pytest.mark.usefixtures("example")
def test_flower_has_them_by_text_and_as_named_strategies():
    runs = pytest.importorskip("tests.flower.runs")
    flower = runs.steelyard_flower
    try:
        options = {"min_train_nodes": runs.COUNT, "fraction_evaluate": 0.0, "seed": 3}
        by_text = flower.Steelyard("example_rule:power=3", **options)
        by_name = flower.ExampleRule(power=3, **options)
        assert str(by_name.algorithm) == str(by_text.algorithm) == "guard(example_rule:power=3)"
        assert "ExampleTerm" in dir(flower)
        results = [runs.params(runs.start(made, rounds=2)) for made in (by_text, by_name)]
        assert runs.same(*results)
        assert not runs.same(results[0], runs.model("mlp").state_dict())
    finally:
        vars(flower).pop("ExampleRule", None)


RULE = """
from dataclasses import dataclass
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._weighting import Info, Weighting

@dataclass(frozen=True)
class Part(Weighting):
    name = "{name}"
    modifies = True
    info = Info("another rule")

    @property
    def needs(self):
        return Needs()

    def apply(self, prior, view, state):
        return prior, state
"""
WRONG = {
    "missing package": (
        "import no_such_package",
        "mine",
        "part:Part",
        "ModuleNotFoundError: No module named",
    ),
    "syntax": ("def", "mine", "part:Part", "SyntaxError"),
    "exit": ("raise SystemExit('bye')", "mine", "part:Part", "SystemExit: bye"),
    "missing name": ("", "mine", "part:Part", "has no attribute 'Part'"),
    "missing module": ("", "mine", "elsewhere:Part", "ModuleNotFoundError"),
    "no part": ("Part = 3", "mine", "part:Part", "it is a int: use a class"),
    "another class": ("class Part: name = 'mine'", "mine", "part:Part", "Part is not a Weighting"),
    "abstract": (
        RULE.replace("def apply", "def other"),
        "mine",
        "part:Part",
        "Part is abstract: define apply",
    ),
    "another name": (RULE.format(name="yours"), "mine", "part:Part", "Part.name is 'yours'"),
    "no info": (
        RULE.format(name="mine") + "    info = 'a rule'\n",
        "mine",
        "part:Part",
        "Part has no info",
    ),
    "unreadable name": (RULE.format(name="a+b"), "a+b", "part:Part", "the name has no text form"),
    "our name": (
        RULE.format(name="fedavg"),
        "fedavg",
        "part:Part",
        "the name is taken by steelyard.rules._fedavg",
    ),
    "our name, registered": (
        RULE.format(name="fedavg") + "\nRULES.register(Part)",
        "mine",
        "part:Part",
        "registered twice, by steelyard.rules._fedavg and by part: rename",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_broken_plugin_is_named_and_does_no_harm(case, site):
    text, name, value, reason = WRONG[case]
    install(site, "broken-plugin", [("steelyard.rules", {name: value})], {"part": text})
    names = {"fedavg", "guard", "fedawa"}
    with pytest.warns(
        UserWarning,
        match=f"rule '{re.escape(name)}' of broken-plugin 1.0 .* is not available: .*{reason}",
    ):
        assert {entry.name for entry in RULES} >= names
    assert not {"mine", "yours", "a+b"} & set(RULES._entries)
    assert RULES["fedavg"].make is steelyard.fedavg
    assert steelyard.parse_rule("guard(fedavg)").rule == steelyard.fedavg()


def test_a_broken_plugin_does_not_take_a_good_one_with_it(example):
    install(
        example, "broken-plugin", [("steelyard.rules", {"mine": "part:Part"})], {"part": "1 / 0"}
    )
    with pytest.warns(UserWarning, match="broken-plugin"):
        assert steelyard.parse_rule("example_rule").power == 2


def test_of_two_plugins_with_the_same_name_one_is_refused(site):
    for letter in "ab":
        points = [("steelyard.rules", {"mine": f"part_{letter}:Part"})]
        install(site, f"plugin-{letter}", points, {f"part_{letter}": RULE.format(name="mine")})
    with pytest.warns(UserWarning, match="the name is taken by part_"):
        assert "mine" in RULES


def test_a_plugin_may_register_its_parts_itself(site):
    text = RULE.format(name="mine") + "\nRULES.register(Part)"
    install(site, "plugin", [("steelyard.rules", {"mine": "part:Part"})], {"part": text})
    assert steelyard.parse_rule("mine").name == "mine"


def test_our_part_wins_over_one_that_was_imported_first(site):
    (site / "early.py").write_text(
        "from steelyard.core._registry import TERMS\nfrom steelyard.core._term import ClientTerm\n"
        "from steelyard.core._weighting import Info\n\n@TERMS.register\nclass Mine(ClientTerm):\n"
        "    name = 'fedprox'\n    info = Info('not ours')\n    def add(self, grad, x, at): pass\n"
    )
    code = "import early, steelyard; print(type(*steelyard.parse_terms('fedprox')).__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "steelyard.client._fedprox"
    assert "client term 'fedprox' of early is ignored: the name belongs to Steelyard" in done.stderr


def test_a_strategy_of_ours_is_not_replaced(site):
    strategies = pytest.importorskip("steelyard.flower._generate_strategies")
    text = RULE.format(name="mine").replace("class Part", "class FedProx")
    install(site, "plugin", [("steelyard.rules", {"mine": "part:FedProx"})], {"part": text})
    with pytest.warns(UserWarning, match=r"part.FedProx has no strategy.*use Steelyard\('mine'\)"):
        place, entry = strategies.find_parts()["FedProx"]
    assert (place, entry.name) == ("client", "fedprox")


@pytest.mark.usefixtures("example")
def test_known_names_look_at_no_installed_package(monkeypatch):
    lookups = []
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda **group: lookups.append(group) or []
    )
    steelyard.Algorithm("guard(feddisco|fedawa)", client="fedprox", server="adam", refine="feddf")
    steelyard.gate("eq6", "fedadp")
    assert lookups == []


def test_parts_of_ours_are_known_without_the_whole_package():
    code = "from steelyard.core._registry import TERMS, OPTIMIZERS; print('fedprox' in TERMS, 'adam' in OPTIMIZERS)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["True", "True"]


def test_listings_survive_a_part_that_needs_options(site):
    text = RULE.format(name="mine").replace(
        '    name = "mine"', '    path: str\n\n    name = "mine"'
    )
    text += "\n    def __post_init__(self):\n        open(self.path).close()\n"
    install(site, "plugin", [("steelyard.rules", {"mine": "part:Part"})], {"part": text})
    rows = {row["name"]: row for row in json.loads(call("rules", "--json"))}
    assert rows["mine"]["needs"] == ["?"]


@pytest.mark.slow
def test_the_example_package_is_built_installed_and_used(tmp_path):
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
    ]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "steelyard_example.py"):
        (source / name).write_text((PACKAGE / name).read_text())
    subprocess.run([*pip, source], check=True, capture_output=True, cwd=tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    command = [
        sys.executable,
        "-m",
        "steelyard",
        "run",
        "--set",
        "weighting=example_rule",
        "--set",
        "rounds=1",
    ]
    command += ["--out", tmp_path / "run", "--json"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert json.loads(done.stdout.splitlines()[0])["round"] == 1


def test_every_group_has_an_example():
    assert {each.group for each in registry._REGISTRIES if each.group} == set(POINTS)
    assert TERMS.group == "steelyard.client_terms"
