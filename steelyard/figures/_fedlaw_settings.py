"""Settings of FedLAW's figures: those of the paper, and small ones on the embedded digits."""

from __future__ import annotations

from typing import Any

from steelyard.figures._figure import Settings, merge_settings

LOCAL: dict[str, Any] = {
    "lr": 0.08,
    "batch_size": 128,
    "schedule": "exponential:0.99",
    "momentum": 0.9,
    "weight_decay": 0.0005,
    "persistent": True,
    "train_share": 0.7,
}

# The paper's analysis: SimpleCNN on CIFAR-10 with 20 clients; a proxy set of 2000 images.
PAPER: dict[str, Any] = {
    "model": "simple_cnn",
    "rounds": 200,
    "data": {"name": "cifar10", "clients": 20},
    "local": LOCAL,
    "proxy": {"per_class": 200},
}
PAPER_SEEDS = (8, 9, 10)
AS_IN_CODE = (
    "As in the authors' code, not in the paper: clients train on 70 % of their data, momentum "
    "persists from round to round, batch 128."
)

# The small version. A client has about 140 images, hence the small batch.
QUICK: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits", "clients": 10},
    "local": {**LOCAL, "lr": 0.02, "batch_size": 32},
    "proxy": {"per_class": 10},
}
QUICK_SEEDS = (50, 51, 52, 53)
ON_DIGITS = (
    "Embedded digits and an MLP with 64 hidden units instead of CIFAR-10 and the paper's network; "
    "learning rate 0.02 instead of 0.08, smaller batches and fewer rounds."
)
TEN_CLIENTS = "10 clients instead of 20."
QUICK_PROXY = (
    "100 proxy images instead of 2000. To reach as far in fewer steps, the server learns for 20 "
    "epochs with a higher learning rate: 0.04 for γ, 0.2 for λ (100 epochs, 0.01)."
)

# Rules of the analysis: gamma is learned alone (GWS), or lambda alone (LAW).
PAPER_GWS = "gws"
PAPER_LAW = "law"
PAPER_LAW_SWA = "fedlaw_swa:preset=official,epochs=100,learn=lambda"
QUICK_GWS = "gws:epochs=20,lr=0.04"
QUICK_LAW = "law:epochs=20,lr=0.2"
QUICK_LAW_SWA = "fedlaw_swa:preset=official,epochs=20,lr=0.2,swa_lr=0.2,learn=lambda"


def set_clients(base: Settings, alpha: float, epochs: int) -> dict[str, Any]:
    """Return settings with Dirichlet(alpha) clients and a number of local epochs."""
    return merge_settings(
        base,
        {"data": {"partition": f"dirichlet:alpha={alpha:g}"}, "local": {"epochs": epochs}},
    )
