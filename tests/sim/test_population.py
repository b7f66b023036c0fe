"""What rules know of the clients that are not in a round."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.data import load


def federation():
    train, test = load("digits")
    return steelyard.Federation.partitioned(train, test, "dirichlet:alpha=0.3", 8, 0)


@pytest.mark.parametrize(
    "rule", ["fedawa:preset=official", "guard(fedawa:preset=official):metric_cap=1e9,size_cap=1e9"]
)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_fedawa_official_starts_from_shares_of_all_clients_examples(rule, share):
    """Its first logits are n_k over the population's examples, as in the authors' code, whoever is sampled."""
    clients = federation()
    sizes = dict(zip(map(str, clients.ids), clients.sizes.tolist(), strict=True))
    history = steelyard.simulate(
        rule,
        clients,
        "logistic",
        rounds=1,
        participation={"share": share},
        local={"steps": 1, "lr": 1e-3},
        executor="serial",
    )
    weights = {str(client): weight for client, weight in history.records[0]["weights"].items()}
    if rule.startswith("guard"):  # it clips updates on top of the weights
        clipped = {str(client): scale for client, scale in history.records[0]["clipped"].items()}
        weights = {client: weight / clipped.get(client, 1.0) for client, weight in weights.items()}
    assert len(weights) == 8 * share
    logits = np.array([sizes[client] for client in weights]) / sum(sizes.values())
    np.testing.assert_allclose(
        list(weights.values()), np.exp(logits) / np.exp(logits).sum(), rtol=1e-9
    )


def test_a_client_enters_with_the_same_logit_whoever_comes_with_it():
    """Raw logits are of the population: they do not depend on the cohort in which a client is met first."""
    base, clients = np.zeros(3), {"a": 40, "b": 30, "c": 20, "d": 10}
    updates = dict(zip(clients, np.eye(4, 3) + 1, strict=True))

    def logit(cohort):
        out = steelyard.aggregate(
            "fedawa:preset=official,population_examples=100",
            torch.from_numpy(base),
            {client: torch.from_numpy(updates[client]) for client in cohort},
            metrics={"num_examples": {client: clients[client] for client in cohort}},
        )
        return out.state["fedawa"]["logits"]["a"]

    assert abs(logit("ab") - 0.4) < 0.0011  # one step of 0.001 from where it entered
    assert abs(logit("acd") - 0.4) < 0.0011
