"""Promises about the package itself."""

import ast
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.torch import save_file

import steelyard

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "steelyard").rglob("*.py"))
BANNED_MODULES = {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "random"}
BANNED_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.save",
    "np.load",
    "yaml.load",
    "torch.manual_seed",
    "np.random.seed",
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled_evaluated_or_drawn_from_global_randomness(source):
    banned = BANNED_MODULES if source.parent.name == "flower" else BANNED_MODULES | {"flwr"}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & banned
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in banned
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in BANNED_CALLS


def test_the_core_imports_with_its_three_dependencies_only():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'flwr', 'scipy', "
        "'hypothesis'])); "
        "import steelyard, torch; steelyard.aggregate('uniform', torch.zeros(3), torch.ones(2, 3))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def _python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_names_are_imported_when_they_are_touched():
    assert _python("import sys, steelyard.cli; print('torch' in sys.modules)") == "False"
    assert _python(
        "import steelyard; print(steelyard.fedawa(steps=3), 'yogi' in dir(steelyard))"
    ).endswith("True")
    assert _python("from steelyard import *; print(aggregate.__name__)") == "aggregate"
    assert (
        _python("import steelyard; print(steelyard.diagnostics.__name__)")
        == "steelyard.diagnostics"
    )


@pytest.mark.parametrize("module", ["steelyard.algorithm", "steelyard.experiments._paper_table"])
def test_every_part_is_registered_whatever_is_imported_first(module):
    script = (
        f"import {module}; from steelyard.core import _registry as r; "
        "kinds = [value for _, value in sorted(vars(r).items()) if isinstance(value, r.Registry)]; "
        "print([[entry.name for entry in kind] for kind in kinds])"
    )
    everything = script.replace(module, "steelyard.public")
    assert _python(script) == _python(everything)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'steelyard' has no attribute 'fedawaa'"):
        steelyard.fedawaa  # noqa: B018


def test_files_left_open_are_closed_in_silence(tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "a.safetensors")
    script = "import sys; from steelyard.stores._safetensors import Checkpoint; kept = Checkpoint(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "a.safetensors"], capture_output=True, check=True
    )
    assert done.stderr == b""


def read_pins():
    """Returns the pinned version of every package in constraints.txt, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_constraints_pin_every_requirement_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for name in set(extras) - {"wandb"}:  # `make setup` does not install it
        texts += extras[name]
    pins = read_pins()
    for requirement in map(Requirement, texts):
        if requirement.name == "steelyard":
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_constraints_pin_what_those_requirements_need():
    pins = read_pins()
    unpinned = set()
    for name in pins:
        try:
            needs = metadata.requires(name) or []
        except (
            metadata.PackageNotFoundError
        ):  # the documentation's packages are installed by `make docs` only
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                unpinned |= {canonicalize_name(need.name)} - pins.keys()
    assert unpinned <= {"pip"}


def test_nothing_is_asked_of_the_network_at_import():
    script = (
        "import sys; sys.addaudithook(lambda event, args: event in "
        "('socket.connect', 'socket.bind', 'socket.getaddrinfo', 'socket.sendto') and "
        "sys.exit(event)); "
        "import steelyard, steelyard.public, steelyard.cli.app; steelyard.aggregate"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_citation_has_the_version_of_the_package():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {steelyard.__version__}" in lines


def test_the_fast_tests_touch_every_package():
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("FAST := "))
    paths = [path.partition("::")[0] for path in line.removeprefix("FAST := ").split()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    # Tests mirror the package but for these.
    elsewhere = {"data": "datasets", "runs": "sim", "testing": "test_testing.py"}
    packages = {
        path.name for path in (ROOT / "steelyard").iterdir() if (path / "__init__.py").is_file()
    }
    folders = {Path(path).parts[1] for path in paths}
    assert {
        package for package in packages if elsewhere.get(package, package) not in folders
    } == set()
