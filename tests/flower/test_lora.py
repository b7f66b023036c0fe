"""LoRA adapters on Flower: only what is trained is sent, and replies may have smaller ranks."""

import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.flower import client, state_to_send, to_record, to_state_dict
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid
from tests.sim.runs import net

peft = pytest.importorskip("peft", reason="the extra [lora] is not installed")


def make_network(rank=3):
    torch.manual_seed(0)
    base = net("mlp")
    names = [name for name, part in base.named_modules() if isinstance(part, torch.nn.Linear)]
    return peft.get_peft_model(base, peft.LoraConfig(r=rank, target_modules=names))


def make_app(parts, ranks=(3,), **options):
    def build(context):
        return make_network(ranks[context.node_config["partition-id"] % len(ranks)])

    return client(
        build,
        lambda context: parts[context.node_config["partition-id"]],
        local=runs.LOCAL,
        **options,
    )


def start(strategy, grid, rounds=2):
    initial = to_record(state_to_send(make_network()))
    return strategy.start(grid, initial, num_rounds=rounds, timeout=30)


@pytest.mark.parametrize("lora", ["svd", "factors"])
def test_flower_and_simulator_give_the_same_bits(lora, tmp_path):
    parts = runs.data()
    strategy = runs.strategy("fedadp", guard=False, lora=lora, out=tmp_path / "run")
    result = start(strategy, LocalGrid(make_app(parts), runs.COUNT, shuffle=1))
    history = steelyard.simulate(
        "fedadp",
        parts,
        make_network(),
        rounds=2,
        local=runs.LOCAL,
        executor="serial",
        seed=3,
        lora=lora,
    )
    assert runs.same(to_state_dict(result.arrays), history.params)
    errors = [record["lora_error"] for record in read_log(tmp_path / "run")]
    assert errors == [record["lora_error"] for record in history.records]


def test_svd_is_the_default_and_only_adapters_are_sent():
    parts = runs.data()
    by_default = start(runs.strategy("fedavg"), LocalGrid(make_app(parts), runs.COUNT))
    named = start(runs.strategy("fedavg", lora="svd"), LocalGrid(make_app(parts), runs.COUNT))
    model = to_state_dict(by_default.arrays)
    assert runs.same(model, to_state_dict(named.arrays))
    assert all("lora_" in name for name in model)


def cut_ranks(number, reply):
    """Client 1 sends adapters of rank 1: the first column and row of its factors."""
    if number == 1:
        model = to_state_dict(reply.content["arrays"])
        for name, tensor in model.items():
            model[name] = tensor[:1].clone() if "lora_A" in name else tensor[:, :1].clone()
        reply.content["arrays"] = to_record(model)
    return reply


def zero_ranks(number, reply):
    """The same client, with zeros in place of the missing columns."""
    if number == 1:
        model = to_state_dict(reply.content["arrays"])
        for name, tensor in model.items():
            if "lora_A" in name:
                tensor[1:] = 0
            else:
                tensor[:, 1:] = 0
        reply.content["arrays"] = to_record(model)
    return reply


def test_a_smaller_rank_is_padded():
    parts = runs.data()
    models = []
    for change in (cut_ranks, zero_ranks):
        grid = LocalGrid(make_app(parts), runs.COUNT, change=change)
        models.append(to_state_dict(start(runs.strategy("fedadp"), grid, rounds=1).arrays))
    assert runs.same(*models)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda model: {k: torch.cat([v, v]) if "lora_A" in k else v for k, v in model.items()},
         "rank"),
        (lambda model: {k: v for k, v in model.items() if "lora_B" not in k}, "missing"),
        (lambda model: {k: v * float("nan") for k, v in model.items()}, "NaN"),
        (lambda model: {k: v[:0] if "lora_A" in k else v[:, :0] for k, v in model.items()}, "rank"),
    ],
    ids=["unequal_ranks", "without_b", "nan", "rank_0"],
)  # fmt: skip
def test_hostile_adapters_are_quarantined_by_name(spoil, reason, tmp_path):
    def change(number, reply):
        if number == 2:
            model = to_state_dict(reply.content["arrays"])
            reply.content["arrays"] = to_record(
                {name: tensor.contiguous() for name, tensor in spoil(model).items()}
            )
        return reply

    grid = LocalGrid(make_app(runs.data()), runs.COUNT, change=change)
    result = start(runs.strategy("fedavg", out=tmp_path / "run"), grid, rounds=1)
    (record,) = read_log(tmp_path / "run")
    assert list(record["quarantined"]) == ["2"]
    assert reason in record["quarantined"]["2"]
    assert all(bool(v.isfinite().all()) for v in to_state_dict(result.arrays).values())


@pytest.mark.parametrize("lora", ["residual", "stack"])
def test_what_clients_cannot_use_is_refused(lora):
    grid = LocalGrid(make_app(runs.data()), runs.COUNT)
    with pytest.raises(SteelyardError, match="lora=svd or lora=factors"):
        start(runs.strategy("fedavg", lora=lora), grid, rounds=1)


def test_a_whole_model_is_refused_with_the_cure():
    grid = LocalGrid(make_app(runs.data()), runs.COUNT)
    initial = to_record(make_network().state_dict())
    strategy = runs.strategy("fedavg", patience=1)
    with pytest.raises(SteelyardError) as caught:
        strategy.start(grid, initial, num_rounds=1, timeout=30)
    assert "state_to_send" in str(caught.value)


def test_own_metrics_see_the_adapted_network():
    parts = runs.data()

    def spread(outputs, targets):
        return float(outputs.std())

    app = make_app(parts, test_metrics={"spread": spread})
    strategy = runs.strategy("fedavg", fraction_evaluate=1.0, min_evaluate_nodes=runs.COUNT)
    result = start(strategy, LocalGrid(app, runs.COUNT), rounds=1)
    assert result.evaluate_metrics_clientapp[1]["spread"] > 0
