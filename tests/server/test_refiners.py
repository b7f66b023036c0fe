"""Server-FT, FedDF and FedBE: against the authors' code, and against torch."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard.algorithm import Algorithm, parse_refiner
from steelyard.core._errors import SteelyardError
from steelyard.core._refiner import Refiner
from steelyard.core._registry import REFINERS
from steelyard.core._spec import to_text
from steelyard.server._refiners import distillation
from tests.golden import arrays, assert_near
from tests.server.test_probe import SIZES, models, net, samples

GOLDEN = arrays("fedlaw_baselines")


@pytest.mark.parametrize(
    ("name", "refine"),
    [
        ("feddf", "feddf:preset=official,epochs=2"),
        ("finetune", "server_ft:preset=official,epochs=2"),
        ("fedavg", None),
    ],
)
def test_equals_the_authors_code_over_rounds(name, refine):
    """Momentum persists from round to round, as there."""
    mould = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    inputs, targets = torch.from_numpy(GOLDEN["proxy_x"]), torch.from_numpy(GOLDEN["proxy_y"])
    probe = steelyard.Probe(mould, inputs, targets, 16, shuffle=False)
    theta, state = torch.from_numpy(GOLDEN["g0"]), None
    for number in range(3):
        clients = theta + torch.from_numpy(GOLDEN["client_deltas"][number])
        metrics = {"num_examples": GOLDEN["sizes"].tolist()}
        out = steelyard.aggregate(
            "fedavg",
            theta,
            clients,
            metrics=metrics,
            probe=probe,
            refine=refine,
            state=state,
            round=number + 1,
        )
        theta, state = out.params, out.state
        assert_near(theta, GOLDEN[f"{name}/global_after_round"][number], 1e-12)


def refined(mould, refine, **options):
    inputs, targets = samples()
    probe = steelyard.Probe(mould, inputs, targets, **options)
    return steelyard.aggregate(
        "fedavg", mould.state_dict(), models(mould), metrics=SIZES, probe=probe, refine=refine
    )


# Adam would amplify the rounding of gradients that are zero: biases before BatchNorm
SGD = "optimizer=sgd,lr=0.1"


def by_hand(state, epochs, objective):
    """The refiner as a plain torch loop, one batch per epoch."""
    student = net(norm=any("running" in name for name in state))
    student.load_state_dict(state)
    student.train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    inputs, _ = samples()
    for _ in range(epochs):
        optimizer.zero_grad()
        objective(student(inputs)).backward()
        optimizer.step()
    return student.state_dict()


def assert_same(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("norm", [False, True])
def test_server_ft_is_training_on_the_proxy(norm):
    mould = net(norm=norm)
    start = refined(mould, None).params
    _, targets = samples()
    expected = by_hand(start, 3, lambda outputs: functional.cross_entropy(outputs, targets))
    assert_same(refined(mould, f"server_ft:epochs=3,{SGD}", shuffle=False).params, expected)


@pytest.mark.parametrize("average", ["logits", "probabilities", "losses"])
def test_feddf_distils_the_clients(average):
    mould = net(norm=True)
    inputs, _ = samples()
    logits = []
    for state in models(mould):
        teacher = net(norm=True)
        teacher.load_state_dict(state)
        logits.append(teacher.eval()(inputs).detach())
    each = torch.stack(logits)
    mean = (
        each.mean(dim=0).softmax(dim=1) if average == "logits" else each.softmax(dim=2).mean(dim=0)
    )

    def objective(outputs):
        student = outputs.log_softmax(dim=1)
        if average == "losses":
            return sum(
                functional.kl_div(student, one.softmax(dim=1), reduction="batchmean")
                for one in each
            ) / len(each)
        return functional.kl_div(student, mean, reduction="batchmean")

    expected = by_hand(refined(mould, None).params, 3, objective)
    assert_same(
        refined(mould, f"feddf:epochs=3,average={average},{SGD}", shuffle=False).params, expected
    )


def test_fedbe_without_samples_is_feddf_with_the_average_as_one_more_teacher():
    mould = net()
    inputs, _ = samples()
    start = refined(mould, None).params
    logits = []
    for state in (start, *models(mould)):
        teacher = net()
        teacher.load_state_dict(state)
        logits.append(teacher.eval()(inputs).detach())
    wanted = torch.stack(logits).mean(dim=0).softmax(dim=1)
    expected = by_hand(
        start,
        3,
        lambda out: functional.kl_div(out.log_softmax(dim=1), wanted, reduction="batchmean"),
    )
    assert_same(refined(mould, f"fedbe:epochs=3,samples=0,{SGD}", shuffle=False).params, expected)


@pytest.mark.parametrize("mode", ["gaussian", "dirichlet"])
def test_fedbe_samples_follow_the_seed(mode):
    mould = net()
    first = refined(mould, f"fedbe:epochs=2,samples=3,mode={mode}", seed=1).params
    again = refined(mould, f"fedbe:epochs=2,samples=3,mode={mode}", seed=1).params
    other = refined(mould, f"fedbe:epochs=2,samples=3,mode={mode}", seed=2).params
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_fedbe_averages_weights_over_the_last_steps():
    mould = net()
    plain = [
        refined(mould, f"fedbe:epochs={n},samples=0", shuffle=False).params["0.weight"]
        for n in (2, 3, 4)
    ]
    averaged = refined(
        mould, "fedbe:epochs=4,samples=0,swa_start=2,swa_every=1", shuffle=False
    ).params["0.weight"]
    torch.testing.assert_close(averaged, torch.stack(plain).mean(dim=0))


def test_sharper_teachers_have_less_entropy():
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    batch, student = torch.arange(5), torch.zeros(5, 3)
    soft, sharp = (
        distillation(logits, "probabilities", 1.0, value)(student, batch) for value in (1.0, 0.5)
    )
    assert sharp > soft  # KL to a uniform student grows


def test_statistics_stay_the_clients_unless_the_proxys_are_asked_for():
    mould = net(norm=True)
    plain = refined(mould, None).params["1.running_mean"]
    assert torch.equal(refined(mould, "server_ft", bn="average").params["1.running_mean"], plain)
    assert not torch.equal(refined(mould, "server_ft", bn="proxy").params["1.running_mean"], plain)


def test_a_refiner_that_diverges_is_said():
    with pytest.raises(SteelyardError, match=r"server_ft.*NaN or infinity.*lr"):
        refined(net(), "server_ft:epochs=30,optimizer=sgd,lr=1e20")


def test_rules_on_proxy_data_and_refiners_go_together():
    mould = net(norm=True)
    inputs, targets = samples()
    out = steelyard.aggregate(
        "fedlaw:epochs=2",
        mould.state_dict(),
        models(mould),
        metrics=SIZES,
        probe=steelyard.Probe(mould, inputs, targets),
        refine="server_ft:epochs=3",
    )
    assert int(out.params["1.num_batches_tracked"]) == 5
    assert out.report["gamma"] != 1.0


@pytest.mark.parametrize("entry", list(REFINERS), ids=lambda entry: entry.name)
def test_text_form(entry):
    part = entry.make()
    assert parse_refiner(to_text(part)) == part
    assert str(Algorithm("fedavg", refine=part)).endswith(f"refine={to_text(part)}")


def test_adam_is_torchs():
    mould = net()
    _, targets = samples()
    student = net()
    student.load_state_dict(refined(mould, None).params)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01, betas=(0.5, 0.999))
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(student(samples()[0]), targets).backward()
        optimizer.step()
    assert_same(refined(mould, "server_ft:epochs=4", shuffle=False).params, student.state_dict())


def test_official_presets_are_the_codes():
    assert steelyard.parse_refiner("feddf:preset=official") == parse_refiner(
        "feddf:epochs=20,optimizer=sgd,lr=0.08,momentum=0.9,weight_decay=0.0005,persistent=true,preset=official"
    )
    assert (parse_refiner("server_ft").epochs, parse_refiner("fedbe").epochs) == (2, 100)
    assert np.isclose(parse_refiner("feddf").lr, 0.01)


@pytest.mark.parametrize("refine", ["server_ft", "feddf", "fedbe", "fedbe:swa_start=2,swa_every=1"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_leaves_frozen_parameters_alone(refine, optimizer):
    mould = net()
    still = next(iter(mould.state_dict()))
    mould.get_parameter(still).requires_grad_(False)
    joint = ":" if ":" not in refine else ","
    made = refined(
        mould, f"{refine}{joint}epochs=3,lr=0.1,optimizer={optimizer},weight_decay=0.1"
    ).params
    plain = refined(mould, None).params
    assert torch.equal(made[still], plain[still])
    assert not any(
        torch.equal(made[name], plain[name])
        for name, _ in mould.named_parameters()
        if name != still
    )


@dataclass(frozen=True)
class Recorder(Refiner):
    """Writes down how long the updates are that a refiner gets to see, both ways."""

    seen: dict

    name = "recorder"

    def refine(self, at, state):
        theta = torch.cat([at.updates(leaf)[1] for leaf in at.store.layout.params])
        rows = torch.cat([at.updates(leaf)[0] for leaf in at.store.layout.params], dim=1)
        self.seen["updates"] = rows.double().norm(dim=1).tolist()
        before = at.session.params.clone()
        for row in range(len(at.store.ids)):
            at.client(row)
            self.seen.setdefault("clients", []).append(
                (at.session.params - theta).double().norm().item()
            )
        at.session.params.copy_(before)
        return {}


@pytest.mark.parametrize("guarded", [False, True])
def test_under_a_guard_refiners_see_clipped_updates(guarded):
    mould = net()
    clients = models(mould)
    base = mould.state_dict()
    liar = next(iter(clients)) if isinstance(clients, dict) else 0
    clients[liar] = {
        name: base[name] + 1e6 * (value - base[name]) for name, value in clients[liar].items()
    }
    seen = {}
    inputs, targets = samples()
    probe = steelyard.Probe(mould, inputs, targets)
    rule = "guard(fedavg)" if guarded else "fedavg"
    steelyard.aggregate(rule, base, clients, metrics=SIZES, probe=probe, refine=Recorder(seen))
    for lengths in seen.values():
        longest = max(lengths)
        usual = sorted(lengths)[len(lengths) // 2]
        assert (longest <= 2.001 * usual) == guarded
