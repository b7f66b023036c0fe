"""What exact aggregation of LoRA adapters costs.

    python -m benchmarks.lora

Each pair of times is measured in one process, on one thread, turn by turn. Bars: the Gram of 20
adapters (2048 x 2048, rank 16) at least 50 times as fast as building the products; `svd:16` at least
50 times as fast as PEFT's `add_weighted_adapter(combination_type="svd")` on the same adapters; a
merge of 20 adapters of a 7B-shaped model (rank 16) under 1 GB and 30 s.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from steelyard.adapter_merge import AdapterMerge
from steelyard.core._lora import model_products

SIDE = 2048
RANK = 16
ADAPTERS = 20
SEVEN_B = {"layers": 32, "side": 4096, "modules": ("q_proj", "k_proj", "v_proj", "o_proj")}


def measure(function, turns):
    """Returns the median time of a function in seconds."""
    seconds = []
    for _ in range(turns):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def compare_grams():
    """Returns the seconds of our Gram and of one from dense products, and their difference."""
    torch.manual_seed(0)
    a = torch.randn(ADAPTERS + 1, RANK, SIDE)
    b = torch.randn(ADAPTERS + 1, SIDE, RANK)
    a[-1] = 0  # the global model
    b[-1] = 0

    def materialise():
        dense = torch.bmm(b, a).view(ADAPTERS + 1, -1)
        return dense @ dense.T

    # The difference from dense products in float64.
    ours = torch.from_numpy(model_products(a, b))
    dense = torch.bmm(b.double(), a.double()).view(ADAPTERS + 1, -1)
    exact = dense @ dense.T
    difference = float((ours - exact).norm() / exact.norm())
    fast = measure(lambda: model_products(a, b), 25)
    slow = measure(materialise, 9)
    return fast, slow, difference


class Layer(nn.Module):
    """A network with one weight."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(SIDE, SIDE, bias=False)

    def forward(self, inputs):
        """Returns the outputs of the weight."""
        return self.fc(inputs)


def compare_svds(folder, count=4):
    """Returns the seconds of our merge and of PEFT's, and the difference of the merged weights."""
    import peft

    # The same random adapters on disk and in PEFT's model.
    model = None
    paths = []
    for number in range(count):
        torch.manual_seed(number)
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["fc"])
        if model is None:
            model = peft.get_peft_model(Layer(), config, adapter_name="0")
        else:
            model.add_adapter(str(number), config)
        layer = model.base_model.model.fc
        nn.init.normal_(layer.lora_B[str(number)].weight)
        model.save_pretrained(str(folder / "peft"), selected_adapters=[str(number)])
        paths.append(folder / "peft" / str(number) if number or (folder / "peft" / "0").is_dir()
                     else folder / "peft")  # fmt: skip

    names = [str(number) for number in range(count)]

    def merge_with_peft():
        if "merged" in model.peft_config:
            model.delete_adapter("merged")
        model.add_weighted_adapter(
            names, [1 / count] * count, "merged", combination_type="svd", svd_rank=RANK
        )

    def merge_with_steelyard():
        job = AdapterMerge(paths, "uniform", lora=f"svd:{RANK}")
        job.run(folder / "merged", force=True)

    fast = measure(merge_with_steelyard, 9)
    slow = measure(merge_with_peft, 1)
    theirs = model.base_model.model.fc.get_delta_weight("merged").detach()
    merged = peft.PeftModel.from_pretrained(Layer(), str(folder / "merged"))
    ours = merged.base_model.model.fc.get_delta_weight("default").detach()
    return fast, slow, float((ours - theirs).norm() / theirs.norm())


def write_adapters(folder):
    """Writes random adapters of a 7B-shaped model; returns their directories."""
    paths = []
    side = SEVEN_B["side"]
    for number in range(ADAPTERS):
        path = folder / f"adapter-{number}"
        path.mkdir()
        generator = torch.Generator().manual_seed(number)
        tensors = {}
        for layer in range(SEVEN_B["layers"]):
            for module in SEVEN_B["modules"]:
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
                a = torch.randn(RANK, side, generator=generator)
                b = torch.randn(side, RANK, generator=generator)
                tensors[f"{name}.lora_A.weight"] = a.half()
                tensors[f"{name}.lora_B.weight"] = b.half()
        save_file(tensors, path / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "r": RANK,
            "lora_alpha": 2 * RANK,
            "target_modules": list(SEVEN_B["modules"]),
        }
        (path / "adapter_config.json").write_text(json.dumps(config))
        paths.append(path)
    return paths


def merge_in_process(paths, out, lora):
    """Merges adapters in a process of its own; returns seconds and its largest memory in MB."""
    command = [sys.executable, "-m", "benchmarks.lora", "--merge", lora, str(out)]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    return result["seconds"], result["memory"]


def merge_here(lora, out, *paths):
    """Merges adapters and prints seconds and memory as JSON."""
    start = time.perf_counter()
    AdapterMerge(list(paths), "fedawa", lora=lora).run(out)
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "memory": memory}))


def main():
    """Prints the tables."""
    torch.set_num_threads(1)
    fast, slow, difference = compare_grams()
    print(f"Gram of {ADAPTERS} adapters, {SIDE} x {SIDE}, rank {RANK}, one thread")
    print(f"  from factors {1e3 * fast:.1f} ms, from dense products {1e3 * slow:.0f} ms: "
          f"{slow / fast:.0f} x (bar 50); difference {difference:.1e}")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        fast, slow, difference = compare_svds(Path(name))
    print(f"Merge of 4 adapters of one {SIDE} x {SIDE} weight to rank {RANK}, files in and out")
    print(f"  ours {1e3 * fast:.0f} ms, PEFT's svd in memory {slow:.1f} s: {slow / fast:.0f} x "
          f"(bar 50); difference {difference:.1e}")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_adapters(folder)
        print(f"Merge of {ADAPTERS} adapters of a 7B-shaped model (128 modules, rank {RANK}, fp16)")
        for lora in ("stack", "svd:16", "factors"):
            seconds, memory = merge_in_process(paths, folder / lora.replace(":", "-"), lora)
            print(f"  {lora}: {seconds:.1f} s (bar 30), {memory:.0f} MB (bar 1000)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--merge"]:
        merge_here(*sys.argv[2:])
    else:
        main()
