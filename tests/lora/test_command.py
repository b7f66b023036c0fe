"""`steelyard merge --adapters`: a PEFT directory, a table, a page, and mistakes in one sentence."""

import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from steelyard.adapter_merge import AdapterMerge, summarize_merge
from steelyard.cli.app import app
from steelyard.report._adapter_merge import build_adapter_report
from tests.lora.test_adapter_merge import OPTIONS, make_adapter, make_network

peft = pytest.importorskip("peft", reason="the extra [lora] is not installed")


def call(*arguments):
    environment = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["merge", *map(str, arguments)], env=environment)


@pytest.fixture
def adapters(tmp_path):
    return [make_adapter(k, options, tmp_path / f"a{k}") for k, options in enumerate(OPTIONS)]


def test_a_merge_of_directories(adapters, tmp_path):
    out = tmp_path / "merged"
    page = tmp_path / "merge.html"
    result = call("--adapters", *adapters, "--rule", "fedawa", "--lora", "svd:2", "-o", out,
                  "--report", page)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "uniform|fedawa" in result.output
    for name in ("a0", "a1", "a2"):
        assert name in result.output
    assert re.search(r"lora=svd:2 is \d+\.\d% off the exact merge", result.output)
    assert "effective adapters of 3" in result.output
    assert "little in common" in result.output

    # PEFT loads it.
    model = peft.PeftModel.from_pretrained(make_network(), str(out))
    assert torch.isfinite(model(torch.arange(8).reshape(2, 4))).all()

    assert "Merge of 3 LoRA adapters" in page.read_text()


def test_the_page_shows_what_the_merge_did(adapters, tmp_path):
    outcome = AdapterMerge(adapters, "fedawa", lora="svd:2").run(tmp_path / "merged")
    summary = summarize_merge(outcome)
    report = build_adapter_report(summary, "fedawa", "svd:2", adapters, "merged", "merge.html")
    figures = {figure.name: figure for figure in report.figures}
    assert list(figures) == ["cosines", "norms", "errors"]

    # Cosines and norms of the dense products.
    rows = []
    for path in adapters:
        model = peft.PeftModel.from_pretrained(make_network(), str(path))
        layers = [layer for layer in model.modules() if hasattr(layer, "get_delta_weight")]
        rows.append(torch.cat([layer.get_delta_weight("default").flatten() for layer in layers]))
    dense = torch.stack(rows).double()
    norms = dense.norm(dim=1)
    cosines = (dense @ dense.T) / norms.outer(norms)
    assert torch.allclose(
        torch.tensor(figures["cosines"].heats[0].values).double(), cosines, atol=1e-5
    )
    assert torch.allclose(torch.from_numpy(summary.norms), norms, rtol=1e-5)

    # The error of the whole merge.
    exact = sum(weight * row for weight, row in zip(summary.weights, dense, strict=True))
    model = peft.PeftModel.from_pretrained(make_network(), str(tmp_path / "merged"))
    layers = [layer for layer in model.modules() if hasattr(layer, "get_delta_weight")]
    merged = torch.cat([layer.get_delta_weight("default").flatten() for layer in layers]).double()
    assert summary.error == pytest.approx(float((merged - exact).norm() / exact.norm()), rel=1e-3)
    assert summary.length == pytest.approx(float(exact.norm() / norms.mean()), rel=1e-5)


def test_an_exact_merge_says_so(adapters, tmp_path):
    result = call("--adapters", *adapters, "-o", tmp_path / "merged")
    assert result.exit_code == 0, result.output
    assert "What was written is the exact merge." in result.output
    config = json.loads((tmp_path / "merged" / "adapter_config.json").read_text())
    assert config["r"] == 7  # 2 + 3 + 2


def test_sizes_can_be_given(adapters, tmp_path):
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps({"num_examples": {"a0": 6, "a1": 3, "a2": 1}}))
    result = call("--adapters", *adapters, "--metrics", sizes, "-o", tmp_path / "merged")
    assert result.exit_code == 0, result.output
    assert re.search(r"a0\s*│\s*0\.6000", result.output)


def test_a_damaged_adapter_is_named(adapters, tmp_path):
    weights = load_file(adapters[1] / "adapter_model.safetensors")
    name = next(iter(weights))
    weights[name][0] = float("nan")
    save_file(weights, adapters[1] / "adapter_model.safetensors")
    result = call("--adapters", *adapters, "-o", tmp_path / "merged")
    assert result.exit_code == 2
    assert "'a1'" in result.output
    assert "NaN" in result.output
    assert not (tmp_path / "merged").exists()
    result = call("--adapters", *adapters, "-o", tmp_path / "merged", "--allow-partial")
    assert result.exit_code == 0, result.output
    assert "left out a1" in result.output


def test_a_plain_merge_of_adapters_warns(adapters, tmp_path):
    files = [path / "adapter_model.safetensors" for path in adapters[:1]]
    base = tmp_path / "base.safetensors"
    save_file({name: 0 * t for name, t in load_file(files[0]).items()}, base)
    result = call("--base", base, "--client", *files, "--rule", "uniform", "--out",
                  tmp_path / "merged.safetensors")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "steelyard merge --adapters" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base", "b.safetensors", "--adapters", "A"], "leave out --base"),
        (["--adapters", "A", "--server", "momentum"], "--server"),
        (["--adapters", "A", "A"], "twice"),
        (["--adapters", "A", "--lora", "residual"], "lora=stack"),
        (["--adapters", "A", "--lora", "mean"], "use stack"),
        (["--adapters", "A", "--rule", "fedlaw"], "proxy data"),
        (["--adapters", "nowhere"], "nowhere"),
        (["--adapters", "A", "--rule", "fedavg"], "--metrics FILE"),
        (["--base", "b.safetensors"], "--adapters for LoRA"),
        (["--base", "b.safetensors", "--client", "c.safetensors", "--lora", "svd"], "--adapters"),
    ],
)
def test_mistakes_are_one_sentence(adapters, arguments, words, tmp_path):
    given = [str(adapters[0]) if part == "A" else part for part in arguments]
    result = call(*given, "-o", tmp_path / "merged")
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
