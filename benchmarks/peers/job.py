"""The job every contestant does, as data: read from the command line and a directory of .npy files.

Needs numpy alone: this file is imported in every peer's own venv, and Steelyard is in none of them.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

# One description for torch and for JAX. Convolutions have no padding; the last layer is linear,
# without a ReLU.
LAYERS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "lenet": (  # of Flower's quickstart: 62,006 parameters on CIFAR-10
        ("conv", 6, 5),
        ("relu",),
        ("pool",),
        ("conv", 16, 5),
        ("relu",),
        ("pool",),
        ("flatten",),
        ("linear", 120),
        ("relu",),
        ("linear", 84),
        ("relu",),
        ("linear", 10),
    ),
    "pfl_cnn": (  # of pfl's CIFAR-10 benchmark: 1,626,442 parameters
        ("conv", 32, 3),
        ("relu",),
        ("conv", 64, 3),
        ("relu",),
        ("pool",),
        ("dropout", 0.25),
        ("flatten",),
        ("linear", 128),
        ("relu",),
        ("dropout", 0.5),
        ("linear", 10),
    ),
}


@dataclass(frozen=True)
class Job:
    """What to train, how, and where the arrays are.

    Attributes:
        data: directory with `inputs`, `targets`, `test_inputs`, `test_targets`, `cohorts` (.npy)
            and `initial.npz`.
        result: where to write the final parameters, as an .npz in the order of `initial.npz`.
        model: a key of `LAYERS`.
        size: samples of each client, which lie one client after another.
        train: how many of them it trains on; the rest is for its own evaluation.
        rounds: how many.
        batch: samples per step.
        epochs: passes over a client's data per round.
        lr: learning rate of SGD.
        momentum: of SGD.
        evaluate: evaluate on the test set (and, in Flower and Steelyard, on clients' own data)
            after every round.
        threads: torch's threads; None for what the peer does by itself.
    """

    data: str
    result: str
    model: str
    size: int
    train: int
    rounds: int
    batch: int
    epochs: int
    lr: float
    momentum: float = 0.0
    evaluate: bool = False
    threads: int | None = None

    @staticmethod
    def given() -> "Job":
        """The job on the command line."""
        return Job(**json.loads(sys.argv[1]))

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def array(self, name: str) -> np.ndarray:
        """An array of the data directory, mapped into memory: nobody pays for reading what it does not use."""
        return np.load(Path(self.data) / f"{name}.npy", mmap_mode="c", allow_pickle=False)

    def initial(self) -> list[np.ndarray]:
        """The first model's parameters, in torch's order and shapes."""
        with np.load(Path(self.data) / "initial.npz", allow_pickle=False) as found:
            return [found[name] for name in sorted(found.files)]

    def finish(self, parameters: list[np.ndarray], **facts: Any) -> None:
        """Writes the final parameters and says that all is done."""
        write_parameters(Path(self.result), parameters)
        say("done", **facts)

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.array("targets")) // self.size

    def rows(self, client: int) -> slice:
        """The samples a client trains on."""
        return slice(client * self.size, client * self.size + self.train)

    def held_out(self, client: int) -> slice:
        """The samples it evaluates on."""
        return slice(client * self.size + self.train, (client + 1) * self.size)


def write_parameters(path: Path, parameters: list[np.ndarray]) -> None:
    """Writes parameters so that their order comes back."""
    np.savez(path, **{f"{number:03}": value for number, value in enumerate(parameters)})


def say(event: str, **facts: Any) -> None:
    """One line of JSON for the driver, with the time."""
    print(json.dumps({"event": event, "at": time.time(), **facts}), flush=True)
