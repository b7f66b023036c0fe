"""Run directories written by hand: many rounds in no time, with any names."""

import json
import math
from itertools import pairwise

import numpy as np

from steelyard.core._gram import Gram
from steelyard.core._round_gram import LayeredGram, RoundGram
from steelyard.report._build import build_report, write_report
from steelyard.runs._directory import CLIENTS, COHORTS, CONFIG, ENVIRONMENT, ROUNDS
from steelyard.runs._files import GRAMS
from steelyard.runs._gram_log import GramLog

HOSTILE = [
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 2'>",
    "\"quotes\" and 'apostrophes' & {{TITLE}} %{x} $\\alpha$",
    "../../etc/passwd\\..\\x",
    "=HYPERLINK(0)",
    "x" * 300,
    "x" * 299 + "y",
    "🦔 Ωmega \u2028 \u202e",
    "</script><style>*{display:none}</style>",
    "<a href='javascript:window.harmed=3'>click</a>",
]


def record(number, ids, rng, *, level=0.9, gamma=False, critical=False, angles=False, bad=None):
    weights = rng.dirichlet(np.ones(len(ids)))
    made = {
        "round": number,
        "weights": dict(zip(ids, weights.tolist(), strict=True)),
        "effective_clients": float(1 / (weights**2).sum()),
        "quarantined": {bad: "holds NaN"} if bad is not None and number % 5 == 0 else {},
        "void": None,
        "norms": dict(zip(ids, rng.uniform(0.5, 1.5, len(ids)).tolist(), strict=True)),
        "cosines": dict(zip(ids, rng.uniform(-0.4, 0.9, len(ids)).tolist(), strict=True)),
        "update_norm": 1.0 / math.sqrt(number),
        "coherence": 0.3 - 0.02 * number,
        "accuracy": float(level * (1 - math.exp(-number / 8)) + rng.normal(0, 0.005)),
        "loss": float(2.3 * math.exp(-number / 8) + rng.uniform(0, 0.02)),
        "lr": 0.1,
        "timings": {"train": 0.5, "sgd": 0.9, "aggregate": 0.01, "evaluate": 0.1, "total": 0.61},
    }
    if gamma:
        made["gamma"] = 0.99 - 0.001 * number
    if critical:
        made["critical"] = number <= 6 or number in (11, 12)
    if angles:
        made["angles"] = dict(zip(ids, rng.uniform(0, 1.5, len(ids)).tolist(), strict=True))
    return made


def write_run(
    path,
    *,
    rule="fedavg",
    seed=0,
    rounds=20,
    done=None,
    ids=("a", "b", "c", "d"),
    data="digits",
    classes=3,
    **notes,
):
    """A run directory; `done` rounds of `rounds`."""
    path.mkdir(parents=True)
    rng = np.random.default_rng([seed, *rule.encode()])
    draws = np.random.default_rng(seed)
    counts = draws.integers(0, 40, (len(ids), classes)).tolist()
    resolved = {
        "algorithm": {"weighting": rule},
        "seed": seed,
        "rounds": rounds,
        "metrics": ["num_examples"]
        if rule == "fedavg"
        else ["loss", "num_examples"],  # follow the algorithm
        "data": {"name": data, "clients": len(ids), "fingerprint": f"data-{seed}"},
        "model": {"parameters": 4810, "initial": f"model-{seed}"},
    }
    (path / CONFIG).write_text(json.dumps({"resolved": resolved}))
    (path / ENVIRONMENT).write_text(
        json.dumps({"steelyard": "0", "command": ["steelyard", "run", "a b"]})
    )
    (path / CLIENTS).write_text(
        json.dumps({"ids": list(ids), "sizes": [sum(row) for row in counts], "counts": counts})
    )
    (path / COHORTS).write_text(json.dumps([list(ids)] * rounds))
    done = rounds if done is None else done
    lines = [json.dumps(record(number, ids, rng, **notes)) + "\n" for number in range(1, done + 1)]
    (path / ROUNDS).write_text("".join(lines))
    return path


def round_gram(number, ids, size=50, idle=None):
    """The inner products of random updates that point the same way; a client may send nothing."""
    rng = np.random.default_rng(number)
    updates = rng.normal(size=(len(ids), size)) + 0.4
    if idle is not None:
        updates[idle] = 0.0
    rows = np.concatenate([updates, rng.normal(size=(1, size))])
    examples = np.arange(10.0, 10.0 + len(ids))
    return RoundGram(
        round=number,
        ids=tuple(ids),
        grams={None: LayeredGram(Gram.of_rows((rows @ rows.T)[None], np.array([size])), ("",))},
        metrics={"num_examples": examples},
        weights=(examples / examples.sum())[None],
        base=np.ones(1),
    )


def append_grams(path, ids, rounds, **options):
    """Records inner products of these rounds; those of later rounds are removed."""
    log = GramLog(path / GRAMS)
    log.open(rounds[0] - 1)
    for number in rounds:
        log.append(round_gram(number, ids, **options))
    log.close()


def write_recorded_run(path, *, ids=("a", "b", "c", "d"), rounds=20, done=None, **options):
    """A run directory with recorded inner products."""
    write_run(path, ids=ids, rounds=rounds, done=done, **options)
    append_grams(path, ids, range(1, (rounds if done is None else done) + 1))
    return path


def comparison(folder, *, ids=("a", "b", "c", "d"), rounds=20, **options):
    """Three algorithms over two seeds, among them one with gamma, periods, angles and a quarantined client."""
    for seed in (0, 1):
        write_run(folder / f"avg-{seed}", seed=seed, ids=ids, rounds=rounds, **options)
        write_run(
            folder / f"law-{seed}",
            rule="fedlaw",
            seed=seed,
            ids=ids,
            rounds=rounds,
            gamma=True,
            level=0.95,
            **options,
        )
        notes = {"critical": True, "angles": True, "bad": ids[0]}
        write_run(
            folder / f"pa-{seed}",
            rule="pa3fed:beta=0.2",
            seed=seed,
            ids=ids,
            rounds=rounds,
            level=0.8,
            **notes,
            **options,
        )
    return folder


def falling(values):
    return all(a >= b for a, b in pairwise(values))


def write_large_page(folder):
    """Writes the page of four runs with 100 clients and 500 rounds each; returns its path."""
    ids = [f"client-{k:03d}" for k in range(100)]
    options = {"ids": ids, "rounds": 500, "classes": 10}
    for rule in ("fedavg", "fedadp", "fedawa", "fedlaw"):
        write_run(
            folder / "runs" / rule,
            rule=rule,
            angles=rule == "fedadp",
            gamma=rule == "fedlaw",
            **options,
        )
    return write_report(build_report([folder / "runs"]), folder / "large.html")
