"""Merging PEFT directories: the merged adapter acts as the dense merge."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import steelyard
from steelyard import SteelyardError

peft = pytest.importorskip("peft", reason="the extra [lora] is not installed")


class Net(nn.Module):
    """A network with layers of all kinds that PEFT adapts."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.fc = nn.Linear(6, 5)
        self.conv = nn.Conv1d(1, 4, 3)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens):
        hidden = torch.relu(self.fc(self.emb(tokens)))
        return self.head(torch.relu(self.conv(hidden.mean(1, keepdim=True))).flatten(1))


OPTIONS = [
    {"r": 2, "lora_alpha": 8},
    {"r": 3, "lora_alpha": 3, "rank_pattern": {"fc": 4}, "alpha_pattern": {"fc": 5}},
    {"r": 2, "lora_alpha": 4, "use_rslora": True},
]


def make_network():
    torch.manual_seed(0)
    return Net()


def make_adapter(seed, options, path, modules_to_save=None):
    """Writes a random adapter of the network to a PEFT directory."""
    config = peft.LoraConfig(
        target_modules=["emb", "fc", "conv"], modules_to_save=modules_to_save, **options
    )
    model = peft.get_peft_model(make_network(), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(str(path))
    return path


@pytest.fixture
def adapters(tmp_path):
    return [make_adapter(k, options, tmp_path / f"a{k}") for k, options in enumerate(OPTIONS)]


def read_dense(path):
    """Returns the weights of the network with the adapter of a directory merged into them."""
    model = peft.PeftModel.from_pretrained(make_network(), str(path))
    return model.merge_and_unload().state_dict()


def predict(path):
    torch.manual_seed(9)
    tokens = torch.randint(0, 11, (8, 5))
    model = peft.PeftModel.from_pretrained(make_network(), str(path)).eval()
    with torch.no_grad():
        return model(tokens), tokens


@pytest.mark.parametrize("rule", ["uniform", "fedadp", "fedawa:steps=5"])
@pytest.mark.parametrize("lora", ["stack", "svd:9"])
def test_the_merged_adapter_acts_as_the_dense_merge(rule, lora, adapters, tmp_path):
    merge = steelyard.AdapterMerge(adapters, rule, lora=lora)
    outcome = merge.run(tmp_path / "merged")
    base = make_network().state_dict()
    dense = [read_dense(path) for path in adapters]
    ids = [str(path) for path in adapters]
    expected = steelyard.aggregate(
        f"uniform|{rule}" if rule != "uniform" else rule, base, dict(zip(ids, dense, strict=True))
    )
    weights = dict(zip(ids, expected.weights.tolist(), strict=True))
    for client, weight in outcome.client_weights.items():
        assert weight == pytest.approx(weights[client], abs=1e-4)
    network = make_network()
    network.load_state_dict(expected.params)
    outputs, tokens = predict(tmp_path / "merged")
    torch.testing.assert_close(outputs, network(tokens).detach(), rtol=1e-4, atol=1e-4)
    assert set(outcome.report["lora_error"]) == {
        f"base_model.model.{m}" for m in ("emb", "fc", "conv")
    }


def test_logits_equal_the_dense_merge_to_1e_5(adapters, tmp_path):
    steelyard.AdapterMerge(adapters, "uniform").run(tmp_path / "merged")
    network = make_network()
    state = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
    for path in adapters:
        for name, value in read_dense(path).items():
            state[name] += value / len(adapters)
    network.load_state_dict(state)
    outputs, tokens = predict(tmp_path / "merged")
    torch.testing.assert_close(outputs, network(tokens).detach(), rtol=1e-5, atol=1e-5)


def test_ranks_add_up(adapters, tmp_path):
    steelyard.AdapterMerge(adapters).run(tmp_path / "merged")
    tensors = load_file(tmp_path / "merged" / "adapter_model.safetensors")
    assert tensors["base_model.model.fc.lora_A.weight"].shape == (2 + 4 + 2, 6)
    assert tensors["base_model.model.emb.lora_embedding_B"].shape == (6, 2 + 3 + 2)
    config = json.loads((tmp_path / "merged" / "adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == 7
    assert config["rank_pattern"] == config["alpha_pattern"] == {"fc": 8}


def test_modules_to_save_are_averaged(tmp_path):
    paths = [
        make_adapter(k, {"r": 2}, tmp_path / f"a{k}", modules_to_save=["head"]) for k in range(2)
    ]
    steelyard.AdapterMerge(paths).run(tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "adapter_model.safetensors")
    parts = [load_file(path / "adapter_model.safetensors") for path in paths]
    (name,) = [key for key in merged if key.endswith("head.weight")]
    torch.testing.assert_close(merged[name], (parts[0][name] + parts[1][name]) / 2)
    predict(tmp_path / "merged")


def test_magnitudes_of_dora_are_ordinary_leaves(tmp_path):
    paths = [make_adapter(k, {"r": 2, "use_dora": True}, tmp_path / f"a{k}") for k in range(2)]
    steelyard.AdapterMerge(paths, lora="svd:2").run(tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "adapter_model.safetensors")
    parts = [load_file(path / "adapter_model.safetensors") for path in paths]
    names = [name for name in merged if "magnitude" in name]
    assert len(names) == 3
    for name in names:
        torch.testing.assert_close(merged[name], (parts[0][name] + parts[1][name]) / 2)
    predict(tmp_path / "merged")


def change_config(path, **changes):
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_tensors(path, change):
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


HOSTILE = {
    "rank of 1e9": (lambda path: change_config(path, r=10**9), "expected 1 to 65536"),
    "other rank": (lambda path: change_config(path, r=5), "has rank 3, and adapter_config.json"),
    "alpha text": (lambda path: change_config(path, lora_alpha="8"), "lora_alpha = '8'"),
    "no lora": (lambda path: change_config(path, peft_type="IA3"), "not the configuration"),
    "no config": (lambda path: (path / "adapter_config.json").unlink(), "no such file"),
    "NaN": (
        lambda path: change_tensors(
            path, lambda t: t["base_model.model.fc.lora_B.weight"].fill_(float("nan"))
        ),
        "NaN",
    ),
    "missing B": (
        lambda path: change_tensors(path, lambda t: t.pop("base_model.model.fc.lora_B.weight")),
        "missing key",
    ),
    "pickle": (
        lambda path: (path / "adapter_model.safetensors").write_bytes(b"\x80\x04junk" * 9),
        "not a safetensors file",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_adapters_are_quarantined_by_name(name, adapters, tmp_path):
    change, reason = HOSTILE[name]
    bad = adapters[1]
    change(bad)
    with pytest.raises(SteelyardError) as caught:
        steelyard.AdapterMerge(adapters).run(tmp_path / "merged")
    assert str(bad) in str(caught.value)
    assert reason in str(caught.value)
    assert not (tmp_path / "merged").exists()
    outcome = steelyard.AdapterMerge(adapters, allow_partial=True).run(tmp_path / "merged")
    assert list(outcome.store.quarantined) == [str(bad)]
    predict(tmp_path / "merged")


def test_an_existing_directory_is_kept_unless_forced(adapters, tmp_path):
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "README.md").write_text("mine")
    with pytest.raises(SteelyardError, match="exists"):
        steelyard.AdapterMerge(adapters).run(tmp_path / "merged")
    steelyard.AdapterMerge(adapters).run(tmp_path / "merged", force=True)
    assert (tmp_path / "merged" / "README.md").read_text() == "mine"
    predict(tmp_path / "merged")


def test_residual_needs_a_base_model(adapters):
    with pytest.raises(SteelyardError, match="use lora=stack"):
        steelyard.AdapterMerge(adapters, lora="residual")
