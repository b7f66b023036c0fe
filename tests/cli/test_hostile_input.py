"""Options and files that are meant to break the command line: one sentence, no traceback."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import steelyard
from tests.cli.test_cli import steelyard_command

DIGITS = "9" * 5000
DEEP = "[" * 3000 + "]" * 3000
NESTED = "[" * 100 + "]" * 100


def check_refused(*arguments):
    result = steelyard_command(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert len(result.output) < 3000
    return result.output


@pytest.mark.parametrize(
    "value", [DIGITS, "-" + DIGITS, DEEP, NESTED, "9" * 30, "1e999", "{a = 1}", "true"]
)
@pytest.mark.parametrize("key", ["rounds", "local", "seed"])
def test_values_that_no_key_can_have(key, value, tmp_path):
    check_refused("run", "--set", f"{key}={value}", "--out", tmp_path / "run")
    if key != "seed":  # a table has seeds of its own
        cell = ("--cells", "mnist-1class-5iid/fedavg")
        check_refused("reproduce", "fedadp-table1", *cell, "--set", f"{key}={value}", "--list")
    (tmp_path / "run.toml").write_text(f"{key} = {value}")
    check_refused("run", tmp_path / "run.toml", "--out", tmp_path / "run")
    (tmp_path / "sweep.toml").write_text(f"[base]\n{key} = {value}\n[grid]\nweighting = ['fedavg']")
    check_refused("sweep", tmp_path / "sweep.toml", "--dry-run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "section", ["data = 3", "local = []", "participation = true", "proxy = 'x'", "metrics = [[1]]"]
)
def test_sections_of_the_wrong_type(section, tmp_path):
    (tmp_path / "run.toml").write_text(section)
    assert section.split()[0] in check_refused(
        "run", tmp_path / "run.toml", "--out", tmp_path / "run"
    )


@pytest.mark.parametrize(
    "rule", ["guard(" * 3000 + "fedavg" + ")" * 3000, "fedadp:alpha=1e999", "fedadp:alpha=" + DEEP]
)
def test_rules_that_cannot_be(rule):
    check_refused("explain", rule)


@pytest.fixture
def files(tmp_path):
    for name, value in (("base", 0.0), ("a", 1.0), ("b", 3.0)):
        save_file({"w": torch.full((3,), value)}, tmp_path / f"{name}.safetensors")
    return tmp_path


def merge(folder, *more, client="b.safetensors"):
    clients = (folder / "a.safetensors", folder / client)
    return [
        "merge",
        "--base",
        folder / "base.safetensors",
        "--client",
        *clients,
        "--out",
        folder / "out.safetensors",
        *more,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        f'{{"num_examples": [{DIGITS}]}}',
        "nonsense",
        "3",
        '{"num_examples": null}',
        "[[1], 2]",
    ],
)
def test_reports_that_cannot_be_read(text, files):
    (files / "reports.json").write_text(text)
    check_refused(*merge(files, "--metrics", files / "reports.json"))
    assert not (files / "out.safetensors").exists()


@pytest.mark.parametrize("value", [10**400, [[1]], "x", None, {}, True, -1])
def test_a_report_of_one_client_that_is_nonsense(value, files):
    (files / "reports.json").write_text(json.dumps({"num_examples": [5, value]}))
    assert "'b'" in check_refused(*merge(files, "--metrics", files / "reports.json"))
    partial = steelyard_command(
        *merge(files, "--metrics", files / "reports.json", "--allow-partial")
    )
    assert partial.exit_code == 0, partial.output


def test_a_number_too_long_to_print_quarantines_its_client():
    metrics = {"num_examples": [5, 10**5000]}
    out = steelyard.aggregate("fedavg", torch.zeros(2), torch.ones(2, 2), metrics=metrics)
    assert list(out.report["quarantined"]) == [1]


def damage(folder: Path, kind: str) -> str:
    if kind == "bin":
        (folder / "b.bin").write_bytes(b"PK" + bytes(50))
        return "b.bin"
    if kind == "shape":
        save_file({"w": torch.ones(4)}, folder / "b.safetensors")
    elif kind == "dtype":
        save_file({"w": torch.ones(3, dtype=torch.float16)}, folder / "b.safetensors")
    elif kind == "nan":
        save_file({"w": torch.full((3,), torch.nan)}, folder / "b.safetensors")
    elif kind == "shard":
        (folder / "b").mkdir()
        (folder / "b" / "model.safetensors.index.json").write_text(
            '{"weight_map": {"w": "gone.safetensors"}}'
        )
        return "b"
    else:
        return "b-missing.safetensors"
    return "b.safetensors"


@pytest.mark.parametrize("kind", ["missing", "bin", "shape", "dtype", "nan", "shard"])
def test_merge_is_strict_unless_told_otherwise(kind, files):
    client = damage(files, kind)
    refused = check_refused(*merge(files, "--rule", "uniform", client=client))
    assert client.removesuffix(".safetensors") in refused
    assert "--allow-partial" in refused
    assert "=True" not in refused
    assert not (files / "out.safetensors").exists()
    partial = steelyard_command(
        *merge(files, "--rule", "uniform", "--allow-partial", client=client)
    )
    assert partial.exit_code == 0, partial.output
    assert "left out" in partial.output


def test_errors_of_merge_name_flags(files):
    assert "--metrics" in check_refused(*merge(files))
    assert steelyard_command(*merge(files, "--rule", "uniform")).exit_code == 0
    again = check_refused(*merge(files, "--rule", "uniform"))
    assert "use --force" in again
    assert "force=True" not in again


def test_a_run_records_no_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_TEST_TOKEN", "canary-7d1f")
    done = steelyard_command(
        "run", "--set", "rounds=1", "--set", "executor=serial", "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"canary-7d1f" not in file.read_bytes()
    assert "canary-7d1f" not in done.output
