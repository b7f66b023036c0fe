"""What recording, replaying and shadow rules cost.

    python -m benchmarks.recorder

CPU time of one thread (other programs may share the machine), medians of several turns. Bars:
recording takes under 1 % of a round (digits, dense network) and under 5 KB a round with 20 clients;
all rules that need only inner products are replayed on 200 rounds of 20 clients in under 5 s; three
shadow rules take under 5 % of FedAWA's aggregation (20 clients, ResNet20).
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import steelyard
from steelyard.core._evidence import Evidence
from steelyard.models import build
from steelyard.recorder._replay import find_replayable_rules, replay_rules
from steelyard.recorder._shadow import ShadowRules
from steelyard.runs._files import GRAMS
from steelyard.runs._gram_log import GramLog
from steelyard.sim._simulator import Simulation
from steelyard.stores._memory import MemoryStore

SHADOWS = (
    ("fedadp", "feddisco", "geometric_median"),
    ("fedadp", "fedawa_cos", "guard(fedadp)"),
    ("fedadp", "fedawa", "guard(feddisco|fedadp)"),
)


class Stopwatch:
    """Adds up the CPU time of functions that it replaces."""

    def __init__(self):
        self.seconds = 0.0
        self.originals = []

    def measure(self, owner, name):
        """Replaces a function by one that measures it."""
        function = getattr(owner, name)

        def call(*arguments, **options):
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - start

        self.originals.append((owner, name, function))
        setattr(owner, name, call)

    def restore(self):
        """Puts the functions back."""
        for owner, name, function in self.originals:
            setattr(owner, name, function)


def measure_recording(clients, rounds, turns):
    """Returns the share of a round that recording takes, its milliseconds, and bytes per round."""
    shares = []
    milliseconds = []
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            stopwatch = Stopwatch()
            stopwatch.measure(Evidence, "seen")
            stopwatch.measure(GramLog, "append")
            rounds_watch = Stopwatch()
            rounds_watch.measure(Simulation, "_round")
            rounds_watch.measure(Simulation, "_keep")
            try:
                steelyard.simulate(
                    "fedavg",
                    "digits",
                    "mlp",
                    rounds=rounds,
                    clients=clients,
                    record="gram",
                    executor="serial",
                    seed=turn,
                    out=out,
                )
            finally:
                rounds_watch.restore()
                stopwatch.restore()
            shares.append(stopwatch.seconds / rounds_watch.seconds)
            milliseconds.append(1e3 * stopwatch.seconds / rounds)
            size = (out / GRAMS).stat().st_size / rounds
    return statistics.median(shares), statistics.median(milliseconds), size


def measure_replay(turns):
    """Returns the seconds of replaying all rules on 200 rounds of 20 clients, and their number."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        metrics = ("num_examples", "label_hist", "loss_before", "grad_norm", "normalizer")
        steelyard.simulate(
            "fedavg",
            "digits",
            "mlp",
            rounds=200,
            clients=20,
            metrics=metrics,
            record="gram:layers=tensor",
            executor="serial",
            out=out,
        )
        seconds = []
        for _ in range(turns):
            start = time.process_time()
            rules, _ = find_replayable_rules(out)
            replay_rules(out, rules).summarize()
            seconds.append(time.process_time() - start)
        contributions = []
        for _ in range(turns):
            start = time.process_time()
            steelyard.contributions(out)
            contributions.append(time.process_time() - start)
    return statistics.median(seconds), len(rules), statistics.median(contributions)


def measure_shadows(base, turns, clients=20):
    """Returns the CPU time of FedAWA's aggregation, and of three shadow rules beside it."""
    generator = torch.Generator().manual_seed(0)
    models = []
    for _ in range(clients):
        models.append(
            {
                name: value + 0.01 * torch.randn(value.shape, generator=generator)
                if value.is_floating_point()
                else value.clone()
                for name, value in base.items()
            }
        )
    store = MemoryStore.of(base, models)
    metrics = {
        "num_examples": list(range(1, clients + 1)),
        "label_hist": [[k + 1, 3, 5] for k in range(clients)],
    }
    aggregation = []
    shadow_times = {rules: [] for rules in SHADOWS}
    states = {rules: ShadowRules(rules) for rules in SHADOWS}
    for _ in range(turns):
        start = time.process_time()
        out = steelyard.aggregate("fedawa", None, store, metrics=metrics, diagnose=True)
        aggregation.append(time.process_time() - start)
        for rules, shadow in states.items():
            start = time.process_time()
            entries = shadow.observe(out.gram, store, None)
            shadow_times[rules].append(time.process_time() - start)
            assert set(entries["shadow_weights"]) == set(rules), entries
    medians = {rules: statistics.median(times) for rules, times in shadow_times.items()}
    return statistics.median(aggregation), medians


def main():
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    for clients, rounds in ((10, 100), (20, 100), (100, 30)):
        share, milliseconds, size = measure_recording(clients, rounds, turns)
        print(
            f"recording, {clients:3d} clients: {share:.2%} of a round ({milliseconds:.2f} ms), "
            f"{size:,.0f} bytes a round",
            flush=True,
        )
    seconds, count, contributions = measure_replay(turns)
    print(f"replay of {count} rules, 200 rounds, 20 clients: {seconds:.2f} s, bar 5 s", flush=True)
    print(f"contributions of the same run: {contributions:.2f} s", flush=True)
    networks = {
        "ResNet20": build("resnet20", (3, 32, 32), 10, seed=0).state_dict(),
        "2 million parameters": {"weight": torch.randn(2_000_000)},
    }
    for name, base in networks.items():
        aggregation, shadows = measure_shadows(base, 7 * turns)
        print(f"FedAWA's aggregation, {name}, 20 clients: {1e3 * aggregation:.1f} ms", flush=True)
        for rules, seconds in shadows.items():
            ratio = seconds / aggregation
            print(f"  shadow {', '.join(rules)}: {1e3 * seconds:.2f} ms, {ratio:.1%}, bar 5 %")


if __name__ == "__main__":
    main()
