"""Same seed, data and rule: the simulator and Flower give the same bits, weights and parameters, every round."""

import pytest

import steelyard
from steelyard.runs._checkpoint import read_verified
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.example import Models
from tests.sim.runs import clients

CASES = {
    "fedavg": ("fedavg", "mlp"),
    "recommended": ("recommended", "cnn"),
    "fedadp": ("fedadp", "cnn"),
    "fedawa": ("fedawa:steps=3", "mlp"),
    "fedawa_images": ("guard(fedawa:steps=3)", "images"),
    "fedawa_l": ("feddisco|fedawa_l:steps=2", "images"),
    "pa3fed": ("pa3fed:detector=criticalfl_window", "batch_norm"),
    "fednova": ("fednova", "dropout"),
    "median": ("median", "mlp"),
    "ldawa": ("ldawa", "images"),
    "fedcos": (
        steelyard.Algorithm("uniform", client="fedcos:mu=0.005+fedprox:mu=0.01", server="adam"),
        "cnn",
    ),
    "fedcos_side_by_side": (steelyard.Algorithm("fedavg", client="fedcos"), "mlp"),
    "fedcos_move": (
        steelyard.Algorithm("fedavg", client="fedcos:direction=move", server="momentum"),
        "mlp",
    ),
    "fedce": ("fedce", "mlp"),
    "fedce_images": ("guard(fedce:mode=times)", "images"),
    "craft": (steelyard.Algorithm("craft:lr=1,length=mean", server="momentum"), "images"),
    "scaffold": (steelyard.Algorithm("fedavg", client="scaffold", server="momentum"), "images"),
    "feddyn": (steelyard.Algorithm("uniform", client="feddyn:form=fedlaw"), "mlp"),
    "fedproto": (steelyard.Algorithm("fedawa:steps=3", client="fedproto+fedprox"), "images"),
    "fedproto_mlp": (steelyard.Algorithm("guard(fedavg)", client="fedproto"), "mlp"),
    "fpl": (steelyard.Algorithm("fedavg", client="fpl:temperature=0.5"), "batch_norm"),
    "creff": (
        steelyard.Algorithm("fedawa:steps=3", client="creff:features=4,match_steps=3,epochs=2"),
        "images",
    ),
    "creff_side_by_side": (
        steelyard.Algorithm("fedavg", client="creff:features=4,match_steps=3,epochs=2"),
        "mlp",
    ),
    "fedmut": (
        steelyard.Algorithm("uniform", client="scaffold", broadcast="fedmut:radius=0.5"),
        "mlp",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_simulator_and_flower_give_the_same_bits(name, tmp_path):
    algorithm, kind = CASES[name]
    models = Models()
    simulated = runs.simulated(algorithm, kind, callbacks=[models])
    made = runs.strategy(algorithm, guard=False, out=tmp_path / "flower")
    made.run_log.max_checkpoints = 9
    result = runs.start(made, kind=kind)
    assert runs.same(runs.params(result), dict(simulated.params))
    assert runs.weights(tmp_path / "flower") == [record["weights"] for record in simulated.records]
    for key in ("direction_cosines", "weighted_cosine"):
        assert [record.get(key) for record in read_log(tmp_path / "flower")] == [
            r.get(key) for r in simulated.records
        ]
    rounds = sorted(path.name for path in (tmp_path / "flower/checkpoints").glob("round-*"))
    assert rounds == ["round-000001", "round-000002", "round-000003"]
    for name, model in zip(rounds, models.seen, strict=True):
        assert runs.same(dict(read_verified(tmp_path / "flower/checkpoints" / name).model), model)


@pytest.mark.parametrize("kind", ["mlp", "images"])
@pytest.mark.parametrize(
    "parts",
    [
        {"weighting": "fedlaw:epochs=5"},
        {"weighting": "fltrust:epochs=2"},
        {"refine": "server_ft:epochs=2"},
    ],
)
def test_proxy_rules_too(kind, parts):
    shape = (2, 6, 6) if kind == "images" else (5,)
    inputs, targets = clients(1, seed=9, shape=shape, size=60)["client-0"]
    algorithm = steelyard.Algorithm(**parts)
    simulated = runs.simulated(algorithm, kind, proxy={"data": (inputs, targets)})
    probe = steelyard.Probe(runs.model(kind), inputs, targets, seed=3)
    result = runs.start(runs.strategy(algorithm, guard=False, proxy=probe), kind=kind)
    assert runs.same(runs.params(result), dict(simulated.params))


def test_momentum_that_clients_keep():
    local = {**runs.LOCAL, "momentum": 0.9, "persistent": True}
    grid = runs.LocalGrid(runs.app("images", local=local), runs.COUNT)
    result = runs.start(runs.strategy("fedavg", guard=False), grid, "images")
    assert runs.same(
        runs.params(result), dict(runs.simulated("fedavg", "images", local=local).params)
    )


def test_the_order_of_replies_does_not_matter():
    results = [
        runs.params(
            runs.start(
                runs.strategy("fedawa"), runs.LocalGrid(runs.app(), runs.COUNT, shuffle=seed)
            )
        )
        for seed in (None, 0, 1, 2)
    ]
    assert all(runs.same(results[0], other) for other in results[1:])


def test_partitioned_data_is_the_simulators():
    partition = "dirichlet:alpha=0.5"
    simulated = steelyard.simulate(
        "fedawa",
        "digits",
        "mlp:hidden=[16]",
        rounds=2,
        clients=4,
        partition=partition,
        seed=0,
        local=runs.LOCAL,
    )
    network = steelyard.models.build("mlp:hidden=[16]", (1, 8, 8), 10, 0)
    data_fn = runs.steelyard_flower.partitioned("digits", partition, seed=0)
    app = runs.steelyard_flower.client(lambda context: network, data_fn, local=runs.LOCAL)
    made = runs.strategy("fedawa", guard=False, seed=0, min_train_nodes=4)
    initial = runs.steelyard_flower.to_record(network.state_dict())
    result = made.start(runs.LocalGrid(app, 4), initial, num_rounds=2, timeout=30)
    assert runs.same(runs.params(result), dict(simulated.params))
