"""Images per second of the simulator beside a bare PyTorch loop, in one run: `make bench`.

(a) one process, one thread, contiguous tensors, `torch.optim.SGD`: the same SGD steps and nothing
else; (b) the simulator with 2 workers: whole rounds with aggregation, records and checkpoints,
evaluation off.

The two take turns; a ratio is the median over turns of neighbours, because the machine is shared
and its speed drifts. Also: the share of a round outside local SGD, seconds from the command to the
first round, memory of 10 000 clients.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import steelyard
from benchmarks.memory import peak_of_tree
from steelyard.models import build


class Case(NamedTuple):
    """A network, its input, batch size, samples per client, local epochs, rounds per turn, and the bar."""

    model: str
    shape: tuple[int, ...]
    batch: int
    samples: int
    epochs: int
    rounds: int
    bar: float


CLIENTS = 10
CASES = {
    "McMahan CNN": Case("mcmahan_cnn", (1, 28, 28), 32, 600, 1, 3, 2.0),
    "SimpleCNN": Case("simple_cnn", (3, 32, 32), 64, 640, 1, 3, 2.6),
    "ResNet20": Case("resnet20", (3, 32, 32), 64, 192, 1, 3, 2.3),
    "MLP 784-200-200-10": Case("mlp:hidden=[200,200]", (1, 28, 28), 32, 600, 5, 6, 3.0),
    "logistic regression": Case("logistic", (1, 28, 28), 50, 600, 5, 25, 7.0),
}


class Clock(steelyard.Callback):
    """When the first round began and when each ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def start(self, simulation: Any) -> None:
        """Rounds begin right after this."""
        self.times.append(time.perf_counter())

    def round(self, simulation: Any, record: Any) -> None:
        """A round, its record and its checkpoint are done."""
        self.times.append(time.perf_counter())


def clients_of(case: Case) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return {
        k: (
            torch.randn(case.samples, *case.shape, generator=g),
            torch.randint(0, 10, (case.samples,), generator=g),
        )
        for k in range(CLIENTS)
    }


def bare(case: Case, data: dict[int, tuple[torch.Tensor, torch.Tensor]], seconds: float) -> float:
    """Images per second of plain training, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = build(case.model, case.shape, 10, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()

    def one_pass(k: int) -> None:
        inputs, targets = data[k]
        for start in range(0, case.samples, case.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(inputs[start : start + case.batch]), targets[start : start + case.batch]
            )
            loss.backward()
            optimizer.step()

    one_pass(0)
    begin, images, k = time.perf_counter(), 0, 0
    while time.perf_counter() - begin < seconds:
        one_pass(k % CLIENTS)
        images, k = images + case.samples, k + 1
    torch.set_num_threads(threads)
    return images / (time.perf_counter() - begin)


def simulated(
    case: Case, data: Any, rule: str = "fedavg", rounds: int | None = None
) -> tuple[float, steelyard.History]:
    """Images per second of whole rounds with two workers, the first one left out."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        history = steelyard.simulate(
            rule,
            data,
            case.model,
            rounds=(rounds or case.rounds) + 1,
            local={"batch_size": case.batch, "lr": 0.01, "epochs": case.epochs},
            executor="process",
            workers=2,
            evaluate_every=0,
            out=out,
            callbacks=[clock],
        )
    images = CLIENTS * case.samples * case.epochs * (rounds or case.rounds)
    return images / (clock.times[-1] - clock.times[1]), history


def speed(turns: int) -> dict[str, Any]:
    rows = {}
    print(
        f"{'':22}{'bare':>10}{'2 workers':>12}{'ratio':>8}{'bar':>6}   images/s, median of {turns} "
        f"turns"
    )
    for name, case in CASES.items():
        data = clients_of(case)
        pairs = [(bare(case, data, 2.0), simulated(case, data)[0]) for _ in range(turns)]
        ratio = statistics.median(b / a for a, b in pairs)
        low, high = min(b / a for a, b in pairs), max(b / a for a, b in pairs)
        left, right = (statistics.median(column) for column in zip(*pairs, strict=True))
        verdict = "" if ratio >= case.bar else "  MISSED"
        print(
            f"{name:22}{left:10.0f}{right:12.0f}{ratio:8.2f}{case.bar:6.1f}   {low:.2f} to "
            f"{high:.2f}{verdict}",
            flush=True,
        )
        rows[name] = {
            "bare": left,
            "simulator": right,
            "ratio": ratio,
            "bar": case.bar,
            "range": [low, high],
        }
    return rows


def outside_sgd() -> dict[str, float]:
    """The share of a round that is not local SGD, waiting and records included: the CNN, ten clients, FedAWA."""
    case = CASES["McMahan CNN"]
    rate, history = simulated(case, clients_of(case), "fedawa:steps=10", rounds=6)
    wall = 6 * CLIENTS * case.samples * case.epochs / rate
    inside = sum(record["timings"]["sgd"] for record in history.records[1:]) / 2  # two workers
    between = wall - sum(record["timings"]["train"] for record in history.records[1:])
    share = 1 - inside / wall
    print(
        f"outside local SGD, CNN, K=10, FedAWA: {100 * share:.1f} % of a round (bar 5 %); "
        f"{100 * between / wall:.1f} %"
    )
    print(
        "  of it is the server's (aggregation, records, checkpoints), the rest workers waiting for "
        "one another"
    )
    return {"share": share, "server": between / wall, "bar": 0.05}


def first_round() -> dict[str, float]:
    """Seconds from typing the command to the first round's start."""
    script = Path(sys.executable).with_name("steelyard")
    times = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as out:
            begin = time.time()
            subprocess.run(
                [script, "run", "--set", "rounds=1", "--out", f"{out}/run", "--json"],
                check=True,
                capture_output=True,
            )
            record = json.loads((Path(out) / "run" / "rounds.jsonl").read_text().splitlines()[0])
            ended = (Path(out) / "run" / "rounds.jsonl").stat().st_mtime
            times.append(ended - record["timings"]["total"] - begin)
    middle = statistics.median(times)
    print(
        f"first round starts {middle:.2f} s after the command (bar 3 s; {min(times):.2f} to "
        f"{max(times):.2f})"
    )
    return {"seconds": statistics.median(times), "bar": 3.0}


def many_clients() -> dict[str, float]:
    """Peak memory of all processes: 10 000 clients, 1 % per round, logistic regression; and the cost of the others."""
    results = {}
    for count in (1000, 10_000):
        code = f"""
import torch, steelyard, sys
g = torch.Generator().manual_seed(0)
inputs, targets = torch.randn(6 * {count}, 1, 28, 28, generator=g), torch.randint(0, 10, (6 * {count},), generator=g)
rows = torch.arange(6 * {count}).view({count}, -1).numpy()
data = steelyard.Federation(steelyard.Dataset(inputs, targets, 10), tuple(range({count})), tuple(rows))
share = {{"count": 100}}
local = {{"epochs": 5, "batch_size": 10}}
more = {{"participation": share, "local": local, "evaluate_every": 0, "workers": 2}}
h = steelyard.simulate("fedavg", data, "logistic", rounds=40, **more)
times = sorted(r["timings"]["total"] for r in h.records)
print(times[len(times) // 2])
"""
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        peak = peak_of_tree(process.pid)
        output, _ = process.communicate()
        assert process.returncode == 0
        seconds = float(output.split()[-1])
        results[str(count)] = {"peak_mb": peak / 1e6, "round_seconds": seconds}
        print(
            f"{count:6} clients, 100 per round: peak {peak / 1e6:.0f} MB (bar 1500), "
            f"{1e3 * seconds:.1f} ms per round"
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/bench-simulator.json"))
    parser.add_argument("--only", choices=["speed", "share", "start", "memory"])
    arguments = parser.parse_args()
    parts = {
        "speed": lambda: speed(arguments.turns),
        "share": outside_sgd,
        "start": first_round,
        "memory": many_clients,
    }
    found = {name: part() for name, part in parts.items() if arguments.only in (None, name)}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps({"cores": os.cpu_count(), **found}, indent=1))
    print(f"saved as {arguments.out}")


if __name__ == "__main__":
    main()
