"""What a rule costs beyond FedAvg's weighted sum, in one run on the same tensors: `make bench`.

Updates are in the store before the clock starts. Every round of measurement makes each call once,
in turn; a ratio is the median over rounds of the ratio of neighbouring calls, because the machine
is shared and its speed drifts.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import steelyard
from benchmarks.models import Shapes, eleven_million, mcmahan_cnn, random_model, resnet20

RULES = {
    "FedAvg": "fedavg",
    "FedAdp": "fedadp",
    "L-DAWA": "ldawa:warmup=0",
    "FedAWA": "fedawa:steps=10",
    "FedAWA-L": "fedawa_l:steps=10",
}
CASES: dict[str, tuple[int, Callable[[], Shapes], dict[str, float]]] = {
    "K=20, d=11,000,000": (
        20,
        eleven_million,
        {"FedAdp": 4, "L-DAWA": 4, "FedAWA": 4, "FedAWA-L": 4},
    ),
    "K=20, d=272,474 in 65 tensors": (
        20,
        resnet20,
        {"FedAdp": 8, "L-DAWA": 8, "FedAWA": 10, "FedAWA-L": 15},
    ),
    "K=100, d=1,663,370": (
        100,
        mcmahan_cnn,
        {"FedAdp": 10, "L-DAWA": 10, "FedAWA": 10, "FedAWA-L": 10},
    ),
}


MANY, GUARD_BAR = 10_000, 3.0  # clients, and what the guard may cost of the rule inside it


def take_turns(
    calls: dict[str, Callable[[], Any]], rounds: int, uncounted: int = 0
) -> dict[str, list[float]]:
    """Seconds of `rounds` calls of each, called in turn, each time starting with another one.

    What came before matters: torch's own threads spin for a while after a plain read, and the next
    call pays for it. So may the first call after another library's: with `uncounted` calls before
    each counted one, everyone finds caches and allocator as it left them itself.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            for _ in range(uncounted):
                calls[name]()
            begin = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - begin)
        order = shuffled(order)
    return times


def shuffled(order: list[str]) -> list[str]:
    """Another order, in which everyone has another neighbour: every second entry first."""
    return order[1::2] + order[0::2]


def flower_call(clients: list[dict[str, torch.Tensor]], sizes: list[int]) -> Callable[[], Any]:
    """Flower's own aggregation of the same data."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    records = [
        RecordDict({"arrays": ArrayRecord(client), "metrics": MetricRecord({"num-examples": size})})
        for client, size in zip(clients, sizes, strict=True)
    ]
    return lambda: aggregate_arrayrecords(records, "num-examples")


def measure(name: str, rounds: int, flower: bool) -> dict[str, Any]:
    clients_count, shapes, bars = CASES[name]
    base = random_model(shapes(), 0)
    clients = {k: random_model(shapes(), 1 + k, base) for k in range(clients_count)}
    sizes = [100 + 7 * k for k in range(clients_count)]
    store = steelyard.MemoryStore.of(base, clients)
    metrics = {"num_examples": sizes}
    calls: dict[str, Callable[[], Any]] = {
        rule: lambda text=text: steelyard.aggregate(text, base, store, metrics=metrics)
        for rule, text in RULES.items()
    }
    calls["plain read"] = lambda: store.matrix.sum()
    times = take_turns(calls, rounds)
    if (
        flower
    ):  # apart, against FedAvg again: what it leaves behind must not slow down the other rules
        rivals = {"Flower": flower_call(list(clients.values()), sizes), "FedAvg": calls["FedAvg"]}
        beside = take_turns(rivals, rounds, uncounted=1)
        times["Flower"] = beside["Flower"]

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    ratios = {rule: ratio(rule, "FedAvg") for rule in RULES}
    ratios["FedAvg / plain read (speed)"] = ratio("plain read", "FedAvg")
    if flower:
        pairs = zip(beside["Flower"], beside["FedAvg"], strict=True)
        ratios["Flower / FedAvg"] = statistics.median(theirs / ours for theirs, ours in pairs)
    milliseconds = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    return {"case": name, "milliseconds": milliseconds, "ratios": ratios, "bars": bars}


def measure_guard(rounds: int) -> dict[str, Any]:
    """What the guard costs with very many clients of a tiny model, where all of it is bookkeeping."""
    noise = torch.Generator().manual_seed(0)
    base = torch.randn(100, generator=noise)
    store = steelyard.MemoryStore.of(base, base + 0.1 * torch.randn(MANY, 100, generator=noise))
    metrics = {"num_examples": [10] * MANY}
    calls: dict[str, Callable[[], Any]] = {
        text: lambda text=text: steelyard.aggregate(text, base, store, metrics=metrics)
        for text in ("fedavg", "guard(fedavg)")
    }
    times = take_turns(calls, rounds)
    pairs = zip(times["guard(fedavg)"], times["fedavg"], strict=True)
    ratio = statistics.median(guarded / plain for guarded, plain in pairs)
    milliseconds = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    return {
        "case": f"guard, K={MANY:,}",
        "milliseconds": milliseconds,
        "ratio": ratio,
        "bar": GUARD_BAR,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/bench-aggregation.json"))
    parser.add_argument("--no-flower", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = [measure(name, arguments.rounds, not arguments.no_flower) for name in CASES]
    for result in results:
        print(f"\n{result['case']}  ({arguments.threads} threads)")
        for rule, milliseconds in result["milliseconds"].items():
            ratio = result["ratios"].get(rule)
            bar = result["bars"].get(rule)
            ratio_text = "" if ratio is None else f"{ratio:6.2f}x FedAvg"
            verdict = ""
            if bar is not None:
                answer = "ok" if ratio <= bar else "MISSED"
                verdict = f"bar {bar:g}x  {answer}"
            print(f"  {rule:12s} {milliseconds:9.2f} ms  {ratio_text:14s} {verdict}")
        speed = result["ratios"]["FedAvg / plain read (speed)"]
        print(f"  FedAvg runs at {speed:.0%} of the speed of a plain read (bar 70%)")
        if "Flower / FedAvg" in result["ratios"]:
            print(
                f"  Flower's aggregate_arrayrecords takes "
                f"{result['ratios']['Flower / FedAvg']:.1f}x FedAvg (bar 8x)"
            )
    guard = measure_guard(arguments.rounds)
    verdict = "ok" if guard["ratio"] <= guard["bar"] else "MISSED"
    print(
        f"\n{guard['case']}: {guard['ratio']:.2f}x the rule inside (bar {guard['bar']:g}x)  "
        f"{verdict}"
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "processor": platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    arguments.out.write_text(
        json.dumps(
            {"machine": machine, "threads": arguments.threads, "results": results, "guard": guard},
            indent=1,
        )
    )
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
