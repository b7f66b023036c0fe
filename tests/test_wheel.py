"""The wheel holds everything that the package needs, and runs in an empty environment."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import steelyard

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "steelyard"


def list_package_data():
    """Returns the data files that pyproject.toml names, relative to the root, by pattern."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["steelyard"]
    data = {}
    for pattern in patterns:
        files = (path for path in PACKAGE.glob(pattern) if path.suffix != ".py")
        data[pattern] = {path.relative_to(ROOT).as_posix() for path in files}
    return data


def list_package_files():
    """Returns all files below steelyard/, relative to the root, without compiled ones."""
    files = (
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_package_data_names_every_file_that_is_not_python():
    named = set().union(*list_package_data().values())
    assert {file for file in list_package_files() if not file.endswith(".py")} == named


def test_every_pattern_of_package_data_matches_a_file():
    assert [pattern for pattern, files in list_package_data().items() if not files] == []


def test_every_directory_with_modules_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder.name for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_git_ignores_no_file_of_the_package():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    names = "\n".join(sorted(list_package_files()))
    # --no-index: also report files that were added in spite of the pattern.
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    result = subprocess.run(
        command, input=names, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.stdout == ""


def make_environment(path):
    """Creates an empty virtual environment and returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    return path / "bin" / "python"


def run(*command, cwd):
    """Runs a command outside of the checkout, with the pins, and returns what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `python -m build` makes from a copy of the tree, by way of the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    shutil.copytree(PACKAGE, tree / "steelyard", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)
    python = make_environment(folder / "builder")
    run(python, "-m", "pip", "install", "--quiet", "build", cwd=folder)
    run(python, "-m", "build", "--outdir", folder / "dist", tree, cwd=folder)
    assert len(list((folder / "dist").glob("*.tar.gz"))) == 1
    (path,) = (folder / "dist").glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == list_package_files()


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheel, tmp_path):
    python = make_environment(tmp_path / "empty")
    command = tmp_path / "empty" / "bin" / "steelyard"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli]", cwd=tmp_path)
    # The installed package is imported, not the checkout.
    where = run(python, "-c", "import steelyard; print(steelyard.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "empty"))
    assert run(command, "--version", cwd=tmp_path).strip() == steelyard.__version__
    # A run on the embedded digits, the tables of the papers, and the definition of the benchmark:
    # package data.
    run(command, "run", "--set", "rounds=2", "--out", "runs/smoke", cwd=tmp_path)
    rounds = (tmp_path / "runs" / "smoke" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 2
    assert "fedadp-table1" in run(command, "reproduce", "--list", cwd=tmp_path)
    assert run(command, "resume", "runs/smoke", cwd=tmp_path) is not None
    # The parts of the page are there, too; drawing it takes the extra [report].
    read = (
        "from importlib.resources import files; "
        "print(len(files('steelyard.report').joinpath('page.html').read_text()))"
    )
    assert int(run(python, "-c", read, cwd=tmp_path)) > 0
