"""LoRA adapters in safetensors files, beside other tensors."""

import torch
from safetensors.torch import save_file

import steelyard
from tests.lora.test_products import make_adapter, make_round


def write(folder, models):
    paths = {}
    for name, model in models.items():
        paths[name] = folder / f"{name}.safetensors"
        save_file(model, paths[name])
    return paths


def test_files_of_smaller_ranks_give_the_bits_of_memory(tmp_path):
    base, clients, sizes = make_round(0, 4, torch.float32, max_rank=2)
    ranks = {model["h.0.attn.lora_A.weight"].shape[0] for model in clients.values()}
    assert len(ranks) > 1
    paths = write(tmp_path, {"base": base, **clients})
    store = steelyard.SafetensorsStore.open(paths.pop("base"), paths)
    from_files = steelyard.aggregate("fedadp", None, store, metrics=sizes)
    in_memory = steelyard.aggregate("fedadp", base, clients, metrics=sizes)
    assert not from_files.report["quarantined"]
    assert from_files.params.keys() == in_memory.params.keys()
    for name, tensor in in_memory.params.items():
        assert torch.equal(tensor, from_files.params[name])


def test_a_larger_rank_than_the_global_one_is_quarantined(tmp_path):
    base, clients, _ = make_round(0, 3, torch.float32, max_rank=2)
    generator = torch.Generator().manual_seed(0)
    clients["c1"] = make_adapter(generator, {"h.0.attn": 3, "h.1.mlp": 2}, torch.float32)
    paths = write(tmp_path, {"base": base, **clients})
    store = steelyard.SafetensorsStore.open(paths.pop("base"), paths)
    assert list(store.quarantined) == ["c1"]
    assert "h.0.attn.lora_A.weight" in store.quarantined["c1"]
