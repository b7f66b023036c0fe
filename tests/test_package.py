"""Promises about the package itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

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
        "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'flwr', 'scipy', 'hypothesis'])); "
        "import steelyard, torch; steelyard.aggregate('uniform', torch.zeros(3), torch.ones(2, 3))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_files_stay_small():
    for source in SOURCES:
        assert len(source.read_text().splitlines()) <= 330, source
