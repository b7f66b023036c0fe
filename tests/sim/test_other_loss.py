"""A run is not resumed with another loss, or with a network of other code."""

import functools
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard.core._errors import SteelyardError
from steelyard.runs._fingerprint import fingerprint
from tests.sim.runs import OPTIONS, Stop, simulate


def compiled(text, **names):
    """A function of the user's, as a changed script defines it."""
    space = {"F": functional, "nn": nn, "torch": torch, "__name__": "script", **names}
    exec(text, space)  # noqa: S102 - a script of the user's
    return space["loss"]


def closing_over(weight):
    return lambda outputs, targets: functional.cross_entropy(outputs, targets, weight=weight)


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, outputs, targets):
        return self.scale * functional.cross_entropy(outputs, targets)

    def loss(self, outputs, targets):
        return self(outputs, targets)


WEIGHTS = torch.tensor([100.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 100.0])
GLOBAL = "def loss(a, b): return F.cross_entropy(a, b, weight=torch.tensor(WEIGHTS))"
INNER = "def loss(a, b):\n    def f(x): return {} * x\n    return f(F.cross_entropy(a, b))"
MODULE = "class Own(nn.Module):\n    def forward(self, a, b): return {} * F.cross_entropy(a, b)\nloss = Own()"
PAIRS = {
    "smoothing of a module": [
        lambda: nn.CrossEntropyLoss(),
        lambda: nn.CrossEntropyLoss(label_smoothing=0.9),
    ],
    "weights of a module": [
        lambda: nn.CrossEntropyLoss(),
        lambda: nn.CrossEntropyLoss(weight=WEIGHTS[0]),
    ],
    "other weights": [lambda i=i: nn.CrossEntropyLoss(weight=WEIGHTS[i].clone()) for i in (0, 1)],
    "partial": [
        lambda s=s: functools.partial(functional.cross_entropy, label_smoothing=s)
        for s in (0.0, 0.9)
    ],
    "weights of a partial": [
        lambda i=i: functools.partial(functional.cross_entropy, weight=WEIGHTS[i]) for i in (0, 1)
    ],
    "lambda": [
        lambda: lambda outputs, targets: functional.cross_entropy(outputs, targets),
        lambda: lambda outputs, targets: 2 * functional.cross_entropy(outputs, targets),
    ],
    "closure": [lambda i=i: closing_over(WEIGHTS[i]) for i in (0, 1)],
    "constant": [
        lambda c=c: compiled(f"def loss(a, b): return {c} * F.cross_entropy(a, b)") for c in (1, 2)
    ],
    "default": [
        lambda c=c: compiled(f"def loss(a, b, c={c}): return c * F.cross_entropy(a, b)")
        for c in (1, 2)
    ],
    "global": [lambda w=w: compiled(GLOBAL, WEIGHTS=w) for w in ([1.0, 1.0, 9.0], [9.0, 1.0, 1.0])],
    "function within": [lambda c=c: compiled(INNER.format(c)) for c in (1, 2)],
    "function called": [
        lambda c=c: compiled(
            f"def f(x): return {c} * x\ndef loss(a, b): return f(F.cross_entropy(a, b))"
        )
        for c in (1, 2)
    ],
    "object": [lambda s=s: Scaled(s) for s in (1.0, 2.0)],
    "method": [lambda s=s: Scaled(s).loss for s in (1.0, 2.0)],
    "module of one's own": [lambda c=c: compiled(MODULE.format(c)) for c in (1, 2)],
    "name": [lambda: functional.cross_entropy, lambda: functional.multi_margin_loss],
    "function and module": [lambda: functional.cross_entropy, lambda: nn.CrossEntropyLoss()],
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_run_is_resumed_with_its_own_loss_only(name, tmp_path):
    one, other = PAIRS[name]
    options = OPTIONS | {"rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, loss=one(), callbacks=[Stop(2)], **options)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    with pytest.raises(SteelyardError, match=r"the run in it is another one .*loss: "):
        simulate(out=tmp_path, loss=other(), resume=True, **options)
    assert (tmp_path / "rounds.jsonl").read_bytes() == before
    assert len(simulate(out=tmp_path, loss=one(), resume=True, **options)) == 4


def test_a_network_of_other_code_is_another_one(tmp_path):
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.1)
    def forward(self, x): return {}(self.layer(x))
loss = Net
"""
    options = OPTIONS | {"rounds": 4}
    simulate(model=compiled(text.format("torch.tanh"))(), out=tmp_path, **options)
    with pytest.raises(SteelyardError, match="model: other code in its classes"):
        simulate(
            model=compiled(text.format("torch.sigmoid"))(), out=tmp_path, resume=True, **options
        )
    simulate(model=compiled(text.format("torch.tanh"))(), out=tmp_path, resume=True, **options)


def test_a_run_from_before_losses_were_written_down_goes_on_and_writes_them(tmp_path):
    loss, options = nn.CrossEntropyLoss(label_smoothing=0.1), OPTIONS | {"rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, loss=loss, callbacks=[Stop(2)], **options)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    written = [config["resolved"]["model"].pop(name) for name in ("loss", "code")]
    path.write_text(json.dumps(config))
    assert len(simulate(out=tmp_path, loss=loss, resume=True, **options)) == 4
    model = json.loads(path.read_text())["resolved"]["model"]
    assert [model[name] for name in ("loss", "code")] == written


def test_functions_of_libraries_go_by_their_names():
    assert fingerprint(functional.cross_entropy) is None
    assert fingerprint(torch.dot) is None


def test_the_hash_is_the_same_in_every_process():
    code = """
import torch, functools
from torch import nn
from torch.nn import functional as F
from steelyard.runs._fingerprint import fingerprint
NAMES = {"b", "a", "c"}
def loss(a, b):
    return F.cross_entropy(a, b) if "x" in {"x", "y", "z"} or NAMES else 0
for one in (loss, nn.CrossEntropyLoss(weight=torch.ones(3)), functools.partial(loss, 1), lambda a, b: loss(a, b)):
    print(fingerprint(one))
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(said) == 1


def test_a_function_that_refers_to_itself_has_a_hash():
    loss = compiled("def loss(a, b): return loss if a is None else F.cross_entropy(a, b)")
    assert fingerprint(loss) == fingerprint(
        compiled("def loss(a, b): return loss if a is None else F.cross_entropy(a, b)")
    )
