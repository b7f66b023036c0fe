"""The LoRA example on its embedded text, as small as it gets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="the extra [lora] is not installed")
pytest.importorskip("transformers", reason="the extra [lora] is not installed")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "lora" / "shakespeare.py"


def read_rows(text, columns):
    """The rows of tables with this number of columns, without heads and lines."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns][2:]


@pytest.mark.slow
def test_the_example_runs():
    command = [sys.executable, str(EXAMPLE), "--tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    # Exact kinds have no error, the others have one.
    federated = {row[1]: row for row in read_rows(done.stdout, 5)}
    assert list(federated) == ["factors", "svd", "residual", "stack"]
    errors = {kind: float(row[4].removesuffix(" %")) for kind, row in federated.items()}
    assert errors["residual"] == errors["stack"] == 0.0
    assert errors["factors"] > 0
    assert errors["svd"] > 0

    # Independent adapters have little in common, and means of their factors are far off.
    merged = {row[0]: row for row in read_rows(done.stdout, 3)}
    errors = {kind: float(row[2].removesuffix(" %")) for kind, row in merged.items() if row[2]}
    assert errors["stack"] == 0.0
    assert errors["factors"] > 50
    cosine = re.search(r"Mean cosine between adapters: (-?[0-9.]+)", done.stdout)
    assert abs(float(cosine[1])) < 0.2
