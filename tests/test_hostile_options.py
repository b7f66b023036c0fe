"""Every option of every registered part, set to what no option can be: a value is taken, or refused in one sentence."""

from contextlib import suppress

import numpy as np
import pytest
import torch

import steelyard
from steelyard.algorithm import Algorithm
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.core._spec import parse
from steelyard.data import CORRUPTIONS, PARTITIONS, SOURCES, load
from steelyard.data._partitions import partition
from steelyard.models import MODELS, build
from steelyard.rules._detectors import DETECTORS, parse_detector
from tests.cli.test_cli import steelyard_command

REGISTRIES = {
    "weighting": RULES,
    "detector": DETECTORS,
    "client": TERMS,
    "server": OPTIMIZERS,
    "broadcast": BROADCASTS,
    "refine": REFINERS,
    "partition": PARTITIONS,
    "corruption": CORRUPTIONS,
    "model": MODELS,
    "data": SOURCES,
}
VALUES = {
    "10^400": 10**400,
    "-10^400": -(10**400),
    "2^63": 2**63,
    "2^63-1": 2**63 - 1,
    "5000 digits": "9" * 5000,
    "largest": 1e308,
    "denormal": 1e-320,
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "-1": -1,
    "0": 0,
    "empty": '""',
    "nested": "[" * 19 + "1" + "]" * 19,
    "too deep": "[" * 3000 + "1" + "]" * 3000,
    "mixed": "[[1,[2]],x]",
    "list": "[1000000000,1000000000]",
    "list of 10^400": f"[{10**400}]",
    "list of nan": "[nan]",
    "word": "x",
    "long word": "x" * 5000,
    "true": "true",
    "none": "none",
    "fraction": 1.5,
    "control": '"\x1b[31m\x00"',
}
ENTRIES = [
    (kind, entry) for kind, registry in REGISTRIES.items() for entry in registry if entry.options
]
LABELS = np.repeat(np.arange(10), 20)


def make(kind, text):
    """Build the part; a partition is applied, and of a model only its size is found out if it fits."""
    if kind == "partition":
        return partition(text, LABELS, 10, 0)
    if kind == "detector":
        return str(parse_detector(text))
    if kind == "data":
        return parse(text, SOURCES)
    if kind == "corruption":
        return parse(text, CORRUPTIONS)
    if kind == "model":
        parse(text, MODELS)
        return [refuse_or_build(text, shape) for shape in ((1, 28, 28), (3, 32, 32), (80,))]
    return str(Algorithm(**{kind: text}))


def refuse_or_build(text, shape):
    try:
        return build(text, shape, 10, 0)
    except SteelyardError as error:
        return error


def inner(entry):
    """The parts that a rule cannot do without, in brackets."""
    parts = {RULES: "fedavg", DETECTORS: "eq6"}
    required = [slot for slot in entry.slots if slot not in entry.options]
    return f"({','.join(parts[entry.slots[slot]] for slot in required)})" if required else ""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """Models of more than 256 MB are not built here."""
    monkeypatch.setattr("steelyard.models._registry._memory", lambda: 1 << 28)


@pytest.mark.parametrize(
    ("kind", "entry"), ENTRIES, ids=[f"{kind}-{entry.name}" for kind, entry in ENTRIES]
)
def test_no_option_of_any_part_ends_in_a_traceback(kind, entry):
    refused = 0
    for option in entry.options:
        for value in VALUES.values():
            try:
                make(kind, f"{entry.name}{inner(entry)}:{option}={value}")
            except SteelyardError:
                refused += 1
    assert (
        refused >= len(entry.options) * 5
    )  # at least the numbers that nobody can compute with, and deep nesting


@pytest.mark.parametrize(
    "value", [10**400, 2**63, float("nan"), float("inf"), "x", None, [[1]], {}, b"", object()]
)
@pytest.mark.parametrize(
    "part", ["fedadp:alpha", "krum:f", "guard:clip", "adam:lr", "fedprox:mu", "mlp:dropout"]
)
def test_python_is_told_the_same(part, value):
    name, option = part.split(":")
    registry = next(registry for registry in REGISTRIES.values() if name in registry)
    rule = {"rule": steelyard.fedavg()} if name == "guard" else {}
    with pytest.raises(SteelyardError, match=f"{option}="):
        registry[name].make(**rule, **{option: value})


RULE_OPTIONS = [
    "krum:f=9223372036854775807",
    "multikrum:keep=9223372036854775807",
    "bulyan:f=9223372036854775807",
    "trimmed_mean:f=9223372036854775807",
    "nnm:f=9223372036854775807",
    "per_layer(fedadp):layers=[9223372036854775807,9223372036854775807]",
    "per_layer(fedadp):layers=[0.*,nothing]",
    "fedawa:lr=1e308",
    "fedadp:alpha=1e308",
    "feddisco:a=1e308",
    "geometric_median:nu=1e-320",
    "centered_clipping:tau=1e-320",
    "guard(fedavg):clip=1e-320",
    "guard(fedavg):clip=1e308",
    "shrink:gamma=1e308",
    "ldawa:layers=[a]",
]


@pytest.mark.parametrize("rule", RULE_OPTIONS)
def test_rules_with_options_at_the_edge_aggregate_or_say_why_not(rule):
    metrics = {"num_examples": [3.0, 4.0, 5.0, 6.0], "label_hist": [[1.0, 2.0]] * 4}
    clients = [{"w": torch.full((3,), float(k))} for k in range(4)]
    with suppress(SteelyardError):
        out = steelyard.aggregate(rule, {"w": torch.zeros(3)}, clients, metrics=metrics)
        assert out.params["w"].isfinite().all()


@pytest.mark.parametrize(
    "shape", ["9" * 5000, str(2**63), "", "-1", "3,nan", "1e9,2", "0,0,0", "²,2"]
)
def test_shapes_that_no_sample_has(shape):
    check_refused("models", "list", "--shape", shape)


def test_models_that_no_memory_holds_are_listed_without_a_number():
    listed = steelyard_command(
        "models", "list", "--shape", "999999999,999999999", "--classes", "1000000000", "--json"
    )
    assert listed.exit_code == 0, listed.output
    check_refused("models", "list", "--classes", str(2**63))


TOML = [
    "1979-05-27",
    "[1979-05-27T07:32:00Z]",
    str(10**400),
    f"[{10**400}]",
    "[[[[1]]]]",
    "{a = 1}",
    "[nan, nan]",
]


@pytest.mark.parametrize(
    "value", [*TOML, "'''" + "x" * 5000 + "'''", "[" * 300 + "]" * 300, "['\\u0000']"]
)
@pytest.mark.parametrize("key", ["seed", "'local.lr'", "'a.b.c'", "'data.dir'"])
def test_sweeps_of_values_that_no_key_has(key, value, tmp_path):
    file = tmp_path / "sweep.toml"
    for text in (
        f"[grid]\n{key} = {value}",
        f"[grid]\n{key} = [{value}]",
        f"[[case]]\nlabel = 'a'\n{key} = {value}",
        f"target = {value}\n[base]\nloss = 'mse'\n{key} = {value}",
        f"[[case]]\nlabel = {value}\n{key} = {value}",
        f"case = [{value}]",
    ):
        file.write_text(text)
        done = steelyard_command("sweep", file, "--dry-run")
        is_text = key == "'data.dir'" and done.exit_code == 0
        assert is_text or (done.exit_code == 2 and len(done.output) < 3000), (
            text[:200],
            done.output,
        )
        assert isinstance(done.exception, SystemExit | None), (text[:200], done.exception)


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 3000, "\0", "a\0b"])
@pytest.mark.parametrize(
    "command", [("compare",), ("report",), ("plot",), ("resume",), ("sweep",), ("run",)]
)
def test_paths_that_no_file_has(command, path):
    check_refused(*command, path)


@pytest.mark.parametrize(
    "seeds", [str(2**63), "9" * 5000, "1,,2", "", "nan", "-1", "1,1", str(10**400)]
)
def test_seeds_that_no_run_has(seeds):
    check_refused("reproduce", "fedadp-table1", "--seeds", seeds, "--list")


@pytest.mark.parametrize("clients", [str(2**63), str(2**63 - 1), "-1", "0"])
def test_clients_that_no_partition_has(clients):
    check_refused("partitions", "show", "iid", "--clients", clients)
    check_refused("partitions", "show", "iid", "--seed", "-1")
    check_refused("partitions", "show", "iid", "--corrupt", "nan:swap")


@pytest.mark.parametrize("value", [10**400, 2**62, 10**9])
@pytest.mark.parametrize(
    "key", ["rounds", "workers", "clients", "participation.spread", "participation.count"]
)
def test_runs_that_no_machine_can_do(key, value):
    section, _, name = key.rpartition(".")
    options = {section: {name: value}} if section else {name: value}
    with pytest.raises(SteelyardError, match=f"{name}={str(value)[:9]}"):
        steelyard.simulate("fedavg", executor="serial", **options)


def test_data_that_memory_cannot_hold(monkeypatch):
    def fail(source, directory):
        raise MemoryError

    monkeypatch.setattr(type(parse("digits", SOURCES)), "__call__", fail)
    with pytest.raises(SteelyardError, match="does not fit into memory"):
        load("digits")


def check_refused(*arguments):
    result = steelyard_command(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert len(result.output) < 3000
