"""The command line, as a user types it."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.main import get_command
from typer.testing import CliRunner

import steelyard
from steelyard.cli.app import app
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.core._spec import to_text
from tests.rounds import cohort, equal, every_rule, reports
from tests.stores.test_safetensors import shard


def steelyard_command(*arguments):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "250", "NO_COLOR": "1"}
    )


@pytest.fixture
def files(tmp_path):
    base, clients = cohort(4)
    save_file(base, tmp_path / "base.safetensors")
    for k, (c, params) in enumerate(clients.items()):
        save_file(params, tmp_path / f"{c}.safetensors", metadata={"num_examples": str(10 + 7 * k)})
    return base, clients, tmp_path


def merge(folder, *more, rule="fedavg", out="merged.safetensors"):
    clients = [folder / f"client-{k}.safetensors" for k in range(4)]
    arguments = [
        "merge",
        "--base",
        folder / "base.safetensors",
        "--client",
        *clients,
        "--rule",
        rule,
    ]
    return steelyard_command(*arguments, "--out", folder / out, *more)


def test_help_teaches():
    result = steelyard_command("--help")
    assert result.exit_code == 0
    for command in ("rules", "explain", "merge"):
        assert command in result.output
    assert "streaming" in steelyard_command("merge", "--help").output
    assert steelyard_command("--version").output.strip() == steelyard.__version__


def commands(group, *names):
    """Every command with its name, those of groups too."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


def test_help_tells_what_every_argument_is():
    found = {}
    for names, command in commands(get_command(app)):
        for param in command.params:
            if param.param_type_name == "argument":
                found[names] = param.help
                assert param.help
                assert param.help in " ".join(steelyard_command(*names, "--help").output.split())
    assert "TOML" in found["sweep",]
    assert "dirichlet:alpha=0.1" in found["partitions", "show"]
    assert len(found) == 14


def test_text_of_the_users_is_no_markup(files, monkeypatch):
    monkeypatch.chdir(files[2])
    out = "a [/x] [bold]y"
    (files[2] / "a [").mkdir()
    made = merge(files[2], out=out + ".safetensors")
    assert made.exit_code == 0, made.output
    assert out in made.output
    made = steelyard_command("run", "--set", "rounds=1", "--out", out)
    assert made.exit_code == 0, made.output
    assert f"run: {out}\n" in made.output
    made = steelyard_command("resume", out)
    assert made.exit_code == 0, made.output
    assert f"run: {out}\n" in made.output


INTERRUPTED = """
import builtins
from steelyard.cli import main
real = builtins.__import__
def importing(name, *rest, **more):
    if name == "steelyard.cli.app":
        raise KeyboardInterrupt
    return real(name, *rest, **more)
builtins.__import__ = importing
main()
"""


def test_ctrl_c_while_modules_load_is_no_traceback():
    made = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stdout, made.stderr) == (130, "", "")


def test_rules_lists_every_rule_with_paper_needs_and_options():
    rows = {row["name"]: row for row in json.loads(steelyard_command("rules", "--json").output)}
    assert {entry.name for entry in RULES} <= set(rows)
    assert rows["fedadp"]["paper"].startswith("Wu")
    assert rows["fedadp"]["needs"] == ["num_examples", "inner products"]
    assert rows["pa3fed"]["needs"] == ["grad_norm", "loss_before", "num_examples"]
    assert rows["feddisco"]["options"] == {"a": "0.5", "b": "0.1", "metric": "kl"}
    table = steelyard_command("rules").output
    assert all(name in table for name in rows)


@pytest.mark.parametrize("rule", every_rule())
def test_explain_every_rule(rule):
    result = steelyard_command("explain", to_text(every_rule()[rule]))
    assert result.exit_code == 0, result.output
    for heading in (
        "Clients disclose",
        "The server sees",
        "Passes",
        "Memory",
        "Secure aggregation",
        "Differential privacy",
    ):
        assert heading in result.output


@pytest.mark.parametrize(
    "registry", [TERMS, OPTIMIZERS, BROADCASTS, REFINERS], ids=lambda registry: registry.kind
)
def test_explain_every_other_part(registry):
    for entry in registry:
        output = steelyard_command("explain", entry.name).output
        assert entry.info.title in " ".join(output.split())
        assert all(f"{option}=" in output for option in entry.options)


def test_explain_says_what_matters():
    assert "two passes" in steelyard_command("explain", "fedadp").output
    assert "one pass" in steelyard_command("explain", "fedavg").output
    assert "label_hist" in steelyard_command("explain", "guard(feddisco)").output
    assert "single updates" in steelyard_command("explain", "krum").output
    wrong = steelyard_command("explain", "fedawaa")
    assert wrong.exit_code == 2
    assert "did you mean 'fedawa'" in wrong.output


@pytest.mark.parametrize(
    "rule", ["fedavg", "fedadp", "fedawa_l:steps=5", "median", "guard(fedawa)"]
)
def test_merge_equals_aggregate(files, rule):
    base, clients, folder = files
    result = merge(folder, rule=rule)
    assert result.exit_code == 0, result.output
    assert "buffers of" in result.output
    expected = steelyard.aggregate(
        rule, base, clients, metrics={"num_examples": reports(list(clients))["num_examples"]}
    )
    merged = load_file(folder / "merged.safetensors")
    assert equal({name: merged[name] for name in base}, expected.params)
    with safe_open(folder / "merged.safetensors", "pt") as file:
        assert steelyard.parse_rule(file.metadata()["rule"]) == steelyard.parse_rule(rule)
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []


def test_merge_refuses_to_overwrite(files):
    _, _, folder = files
    assert merge(folder).exit_code == 0
    before = (folder / "merged.safetensors").read_bytes()
    again = merge(folder, rule="uniform")
    assert again.exit_code == 2
    assert "--force" in again.output
    assert (folder / "merged.safetensors").read_bytes() == before
    assert merge(folder, "--force", rule="uniform").exit_code == 0
    assert (folder / "merged.safetensors").read_bytes() != before


def test_merge_names_who_is_left_out(files):
    _, clients, folder = files
    bad = {**clients["client-2"], "scale": torch.tensor(math.nan)}
    save_file(bad, folder / "client-2.safetensors", metadata={"num_examples": "3"})
    save_file({"other": torch.ones(2)}, folder / "client-0.safetensors")
    result = merge(folder, "--allow-partial")
    assert result.exit_code == 0
    assert "left out" in result.output
    assert "NaN" in result.output
    assert "client-0" in result.output


def test_a_failed_merge_leaves_nothing_behind(files):
    _, clients, folder = files
    for k in range(4):
        nan = {**clients[f"client-{k}"], "scale": torch.tensor(math.nan)}
        save_file(nan, folder / f"client-{k}.safetensors", metadata={"num_examples": "3"})
    before = sorted(folder.iterdir())
    result = merge(folder, "--allow-partial")
    assert result.exit_code == 2
    assert "no valid client" in result.output
    assert sorted(folder.iterdir()) == before


def test_merge_with_reports_in_a_file(files):
    base, clients, folder = files
    metrics = reports(list(clients))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert (
        merge(
            folder, "--metrics", folder / "metrics.json", "--quiet", rule="feddisco|fedawa"
        ).output
        == ""
    )
    expected = steelyard.aggregate("feddisco|fedawa", base, clients, metrics=metrics)
    merged = load_file(folder / "merged.safetensors")
    assert equal({name: merged[name] for name in base}, expected.params)


def test_merge_without_sizes_names_the_cure(files):
    _, clients, folder = files
    for c, params in clients.items():
        save_file(params, folder / f"{c}.safetensors")
    result = merge(folder, rule="fedawa")
    assert result.exit_code == 2
    assert "uniform|" in result.output
    assert merge(folder, rule="uniform|fedawa").exit_code == 0


def test_merge_of_shards(files):
    base, clients, folder = files
    base_folder = shard(folder / "base-shards", base, 3)
    sharded = [shard(folder / f"{c}-shards", m, 2) for c, m in clients.items()]
    arguments = [
        "merge",
        "--base",
        base_folder,
        "--client",
        *sharded,
        "--rule",
        "uniform|fedadp",
        "--out",
    ]
    refused = steelyard_command(*arguments, folder / "one.safetensors")
    assert refused.exit_code == 2
    assert "3 shards" in refused.output
    result = steelyard_command(*arguments, folder / "merged")
    assert result.exit_code == 0, result.output
    merged = {}
    for file in (folder / "merged").glob("*.safetensors"):
        merged |= load_file(file)
    expected = steelyard.aggregate("uniform|fedadp", base, clients)
    assert equal({name: merged[name] for name in base}, expected.params)
    weight_map = json.loads((folder / "merged" / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    assert weight_map.keys() == base.keys()
    assert steelyard_command(*arguments, folder / "merged").exit_code == 2
    assert steelyard_command(*arguments, folder / "merged", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--base": "nowhere.safetensors"}, "no such file"),
        ({"--rule": "fedawaa"}, "did you mean"),
        ({"--out": "missing/m.safetensors"}, "no such directory"),
        ({"--metrics": "nowhere.json"}, "nowhere.json"),
        ({"--server": "adamm"}, "did you mean 'adam'"),
    ],
)
def test_mistakes_are_one_sentence(files, change, message):
    _, _, folder = files
    given = {
        "--base": "base.safetensors",
        "--client": "client-0.safetensors",
        "--rule": "uniform",
        "--out": "m.safetensors",
    }
    paths = ("--base", "--client", "--out", "--metrics")
    arguments = [
        part
        for key, value in {**given, **change}.items()
        for part in (key, folder / value if key in paths else value)
    ]
    result = steelyard_command("merge", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_without_the_extra_the_command_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None; from steelyard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 1
    assert "pip install 'steelyard[cli]'" in done.stderr


def test_merge_into_a_directory_of_others_loses_nothing(files):
    *_, folder = files
    arguments = [
        "merge",
        "--base",
        folder / "base.safetensors",
        "--client",
        folder / "client-0.safetensors",
    ]
    refused = steelyard_command(*arguments, "--rule", "uniform", "--out", folder, "--force")
    assert refused.exit_code == 2
    assert "'client-0.safetensors'" in refused.output
    assert (folder / "client-0.safetensors").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_merge_takes_every_client_once(files):
    *_, folder = files
    one = folder / "client-0.safetensors"
    arguments = [
        "merge",
        "--base",
        folder / "base.safetensors",
        "--client",
        one,
        one,
        "--rule",
        "uniform",
    ]
    refused = steelyard_command(*arguments, "--out", folder / "merged.safetensors")
    assert refused.exit_code == 2
    assert "is given twice" in refused.output
