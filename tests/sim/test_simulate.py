"""What a run does, on small data."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.runs._directory import read_config
from tests.sim.runs import ALGORITHMS, clients, net, same, simulate


def test_one_step_of_fedavg_is_centralised_gradient_descent():
    data = clients()
    history = simulate("fedavg", data, rounds=5, local={"lr": 0.3, "batch_size": 1000})
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    inputs, targets = (torch.cat(column) for column in zip(*data.values(), strict=True))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    for name, expected in module.state_dict().items():
        torch.testing.assert_close(history.params[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_1_2_and_4_workers_give_the_same_bits(name):
    options = {"rounds": 5, "test": clients(1, seed=9)["client-0"], "participation": {"share": 0.7}}
    serial = simulate(ALGORITHMS[name], **options)
    for workers in (1, 2, 4):
        assert same(
            serial, simulate(ALGORITHMS[name], executor="process", workers=workers, **options)
        )


@pytest.mark.parametrize("kind", ["cnn", "batch_norm", "dropout"])
def test_other_networks_too(kind):
    data = clients(shape=(2, 6, 6)) if kind == "cnn" else clients()
    local = {"lr": 0.1, "batch_size": 8, "momentum": 0.9, "persistent": True}
    serial = simulate("fedadp", data, net(kind), local=local)
    assert same(
        serial, simulate("fedadp", data, net(kind), local=local, executor="process", workers=3)
    )
    if kind == "batch_norm":
        assert serial.params["1.running_var"].min() > 0
        assert (
            serial.params["1.num_batches_tracked"] == 4 * 5
        )  # the most of any client, and still a whole number


@pytest.mark.parametrize(
    "local", [{"steps": 3}, {"steps": 7, "momentum": 0.5}, {"epochs": 2, "drop_last": True}]
)
def test_clients_of_different_sizes_side_by_side_train_as_they_would_alone(local):
    data = clients()
    together = simulate("uniform", data, rounds=1, local={"lr": 0.1, "batch_size": 8, **local})
    alone = [
        simulate("uniform", {name: pair}, rounds=1, local={"lr": 0.1, "batch_size": 8, **local})
        for name, pair in data.items()
    ]
    for name, value in together.params.items():
        expected = torch.stack([history.params[name] for history in alone]).mean(dim=0)
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
@pytest.mark.parametrize(
    "local",
    [
        {"epochs": 2},
        {"epochs": 2, "drop_last": True},
        {"train_share": 0.7, "drop_last": True},
        {"steps": 3},
    ],
)
def test_steps_are_known_before_batches_are_drawn(kind, local):
    """Deadlines judge clients by them: 20 to 35 samples in batches of 11, so that some have one left over."""
    found = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            work = simulation.work
            found.extend((work.num_steps(k), work.batches(k, 1).steps) for k in range(6))

    simulate(
        "fedavg",
        clients(),
        net(kind),
        rounds=1,
        local={"batch_size": 11, **local},
        callbacks=[Spy()],
    )
    assert [known for known, _ in found] == [taken for _, taken in found]


def test_torch_threads_and_the_order_of_clients_do_not_matter():
    data = clients()
    plain = simulate("fedawa", data)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert same(plain, simulate("fedawa", data))
    finally:
        torch.set_num_threads(before)
    assert same(plain, simulate("fedawa", dict(reversed(data.items()))))


def test_a_client_does_not_change_another_ones_randomness():
    drawn = {}

    class Spy(steelyard.Callback):
        def __init__(self, key):
            self.key = key

        def start(self, simulation):
            work = simulation.work
            ids = work.federation.ids
            here = {name: work.batches(i, 3) for i, name in enumerate(ids)}
            drawn[self.key] = {
                n: here[n].order - int(work.federation.index[ids.index(n)][0]) for n in ids
            }

    data = clients()
    simulate(data=data, rounds=1, callbacks=[Spy("all")])
    other = {name: pair for name, pair in data.items() if name != "client-2"}
    other["client-9"] = data["client-2"]
    simulate(data=other, rounds=1, callbacks=[Spy("other")])
    for name in ("client-0", "client-1", "client-3", "client-5"):
        assert torch.equal(drawn["all"][name], drawn["other"][name])


def test_what_a_module_draws_differs_by_client_and_round_and_is_the_same_again():
    drawn = []

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            if self.training:
                drawn.append(torch.rand(()).item())
            return self.inner(x)

    before = torch.get_rng_state()
    for _ in range(2):
        simulate("fedavg", clients(3), Noisy(), rounds=2, local={"steps": 1})
    assert drawn[:6] == drawn[6:]
    assert len(set(drawn)) == 6
    assert torch.equal(torch.get_rng_state(), before)  # the user's own randomness is left alone


def test_seeds_and_rounds_differ():
    a, b = simulate(seed=0, rounds=2), simulate(seed=1, rounds=2)
    assert not same(a, b)
    assert a.records[0]["weights"] == b.records[0]["weights"]


def test_another_batch_seed_changes_the_batches_and_nothing_else(tmp_path):
    """The control of the benchmark: same data, initial model and cohorts, other batches."""
    common = {"participation": {"share": 0.5}, "rounds": 3}
    plain = {"lr": 0.1, "batch_size": 8}
    first = simulate(**common, local=plain, out=tmp_path / "first")
    again = simulate(**common, local={**plain, "batch_seed": 0})
    other = simulate(**common, local={**plain, "batch_seed": 1}, out=tmp_path / "other")
    assert same(first, again)
    assert not same(first, other)
    assert not same(other, simulate(**common, local={**plain, "batch_seed": 2}))
    cohorts = [[sorted(record["weights"]) for record in history] for history in (first, other)]
    assert cohorts[0] == cohorts[1]
    resolved = [read_config(tmp_path / name)["resolved"] for name in ("first", "other")]
    assert resolved[0]["model"] == resolved[1]["model"]
    assert resolved[0]["data"] == resolved[1]["data"]
    # Runs from before the option can be resumed: it is written only where it is used.
    assert "batch_seed" not in resolved[0]["local"]
    assert resolved[1]["local"]["batch_seed"] == 1


def test_one_batch_of_all_samples_knows_no_batch_seed_but_its_order():
    full = {"lr": 0.1, "batch_size": 1000}
    a, b = (simulate(rounds=1, local={**full, "batch_seed": n}) for n in (0, 1))
    for name in a.params:
        assert torch.allclose(a.params[name], b.params[name], atol=1e-6)


def test_persistent_momentum_is_remembered_and_adam_counts_on():
    for local in ({"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}):
        options = {"lr": 0.1, "batch_size": 8} | local
        fresh, kept = simulate(local=options), simulate(local=options | {"persistent": True})
        assert fresh.records[0]["update_norm"] == kept.records[0]["update_norm"]
        assert fresh.records[1]["update_norm"] != kept.records[1]["update_norm"]


LONG = {
    "momentum": ({"lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adam": ({"lr": 0.02, "optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.02)),
}


@pytest.mark.parametrize("name", LONG)
def test_persistent_optimizer_state_makes_one_long_run_of_a_single_client(name):
    data = {"only": clients(1)["client-0"]}
    local, make = LONG[name]
    history = simulate(
        "fedavg", data, rounds=6, local={"batch_size": 1000, "persistent": True, **local}
    )
    module = net()
    optimizer = make(module.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(data["only"][0]), data["only"][1]).backward()
        optimizer.step()
    for name, expected in module.state_dict().items():
        torch.testing.assert_close(history.params[name], expected, rtol=0, atol=1e-5)


def test_fedcos_takes_the_step_before_the_server_optimizer():
    seen = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            self.theta = simulation.buffers.theta.clone()

        def round(self, simulation, record):
            seen.append(
                (simulation.buffers.sent["step"].clone(), simulation.buffers.theta - self.theta)
            )
            self.theta = simulation.buffers.theta.clone()

    algorithm = steelyard.Algorithm("uniform", client="fedcos", server="sgd:lr=0.25")
    simulate(algorithm, rounds=2, callbacks=[Spy()])
    for step, moved in seen:
        torch.testing.assert_close(0.25 * step, moved, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("direction", "server", "expected"),
    [
        ("step", "sgd:lr=0.25", 4.0),
        ("move", "sgd:lr=0.25", 1.0),
        ("move", "momentum", 1.0),
        ("move", None, 1.0),
    ],
)
def test_fedcos_pulls_along_the_step_or_along_the_move_of_the_model(direction, server, expected):
    seen = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            self.theta = simulation.buffers.theta.clone()

        def round(self, simulation, record):
            ((name, vector),) = simulation.buffers.sent.items()
            seen.append((name, vector.clone(), simulation.buffers.theta - self.theta))
            self.theta = simulation.buffers.theta.clone()

    algorithm = steelyard.Algorithm("fedavg", client=f"fedcos:direction={direction}", server=server)
    simulate(algorithm, rounds=3, callbacks=[Spy()])
    for name, vector, moved in seen:
        assert name == direction
        assert vector.norm() > 0
        torch.testing.assert_close(vector, expected * moved, rtol=1e-4, atol=1e-7)


def test_without_a_server_optimizer_step_and_move_are_the_same():
    runs = [
        simulate(steelyard.Algorithm("fedavg", client=f"fedcos:direction={name}"))
        for name in ("step", "move")
    ]
    for name, value in runs[0].params.items():
        torch.testing.assert_close(value, runs[1].params[name], rtol=1e-5, atol=1e-7)
    assert steelyard.parse_terms("fedcos:direction=step") == steelyard.parse_terms("fedcos")
    with pytest.raises(SteelyardError, match="direction='back': use one of 'step', 'move'"):
        steelyard.fedcos(direction="back")


@pytest.mark.parametrize("direction", ["step", "move"])
def test_the_record_has_each_clients_cosine_to_the_direction_it_was_sent(direction):
    expected = []

    class Spy(steelyard.Callback):
        def start(self, simulation):
            self.sent = simulation.buffers.sent[direction].clone()

        def round(self, simulation, record):
            updates = simulation.buffers.matrix[: len(record["weights"])]
            cosines = torch.nn.functional.cosine_similarity(
                updates.double(), self.sent.double()[None]
            )
            expected.append(dict(zip(record["weights"], cosines.tolist(), strict=True)))
            self.sent = simulation.buffers.sent[direction].clone()

    algorithm = steelyard.Algorithm(
        "fedavg", client=f"fedcos:direction={direction}", server="momentum"
    )
    history = simulate(algorithm, rounds=3, callbacks=[Spy()])
    assert "direction_cosines" not in history.records[0]  # there is no direction yet
    for record, cosines in zip(history.records[1:], expected[1:], strict=True):
        assert record["direction_cosines"] == pytest.approx(cosines, abs=1e-5)
    assert "direction_cosine.client-0" in history.to_pandas()
    assert all("direction_cosines" not in record for record in simulate("fedavg", rounds=3))


def test_fedcos_does_nothing_in_round_1():
    plain = simulate("uniform", rounds=2)
    penalised = simulate(steelyard.Algorithm("uniform", client="fedcos:mu=0.5"), rounds=2)
    norms = [[r["update_norm"] for r in history.records] for history in (plain, penalised)]
    assert norms[0][0] == pytest.approx(norms[1][0], rel=1e-5)
    assert abs(norms[0][1] - norms[1][1]) > 0.01 * norms[0][1]


def test_fedmut_clients_start_from_mutated_models():
    seen = {}

    class Spy(steelyard.Callback):
        def round(self, simulation, record):
            buffers, leaves = simulation.buffers, simulation.work.model.layout.params
            if record["round"] == 1:
                seen["move"] = buffers.sent["move"].clone()
                return
            seen["updates"] = buffers.matrix[:6].clone()
            spread = torch.cat(
                [
                    buffers.starts[:6, i : i + 1].expand(6, leaf.size)
                    for i, leaf in enumerate(leaves)
                ],
                1,
            )
            seen["expected"] = spread * seen["move"].double()

    algorithm = steelyard.Algorithm("uniform", broadcast="fedmut:radius=0.5")
    local = {"lr": 0.1, "schedule": "step:every=1,gamma=1e-12"}  # nobody learns anything in round 2
    simulate(algorithm, rounds=2, local=local, callbacks=[Spy()])
    assert seen["move"].norm() > 0.01
    assert len(set(seen["expected"][:, 0].tolist())) == 2  # half go forth, half back
    torch.testing.assert_close(seen["updates"].double(), seen["expected"], rtol=0, atol=1e-6)
