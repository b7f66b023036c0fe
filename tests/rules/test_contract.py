"""What every rule must do. Rules are found by themselves: a new one is under contract as soon as it is registered."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import steelyard
from steelyard.core._spec import to_text
from steelyard.stores._memory import MemoryStore
from steelyard.stores._safetensors import SafetensorsStore
from steelyard.testing import RULE_CHECKS
from steelyard.testing._rule_checks import ROUND, aggregate, check_total_weight
from tests.rounds import cohort, equal, equal_states, every_rule, model, reports

RULES = every_rule()
# Their papers do not normalise the coefficients.
SCALED = (
    "craft",
    "fedexp",
    "fedlaw",
    "fedlaw_swa",
    "fedlws",
    "fedmgda",
    "fednova",
    "fltrust",
    "gws",
    "ldawa",
    "model_stock",
    "shrink",
)
every = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every
@pytest.mark.parametrize("check", RULE_CHECKS, ids=lambda check: check.__name__)
def test_every_rule_keeps_the_contract(rule, check):
    check(rule)


@pytest.mark.parametrize("name", [name for name in RULES if name not in SCALED])
def test_weights_sum_to_one(name):
    check_total_weight(RULES[name])


@pytest.mark.parametrize("name", SCALED)
def test_weights_of_scaled_rules_do_not_sum_to_one(name):
    with pytest.raises(AssertionError, match="sum to"):
        check_total_weight(RULES[name])


@every
def test_a_rule_that_cannot_work_layer_by_layer_is_refused(rule):
    if rule.needs.per_layer is not None or rule.needs.coordinates:
        with pytest.raises(steelyard.SteelyardError, match="already"):
            steelyard.per_layer(rule)
    elif rule.needs.probe:
        with pytest.raises(steelyard.SteelyardError, match="only the whole model has"):
            steelyard.per_layer(rule)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A cohort of more than two blocks, in memory and in files."""
    folder = tmp_path_factory.mktemp("clients")
    base, clients = cohort(5, wide=7500)
    save_file(base, folder / "base.safetensors")
    paths = {c: folder / f"{c}.safetensors" for c in clients}
    for c, params in clients.items():
        save_file(params, paths[c])
    assert MemoryStore.of(base, clients).layout.dim > 2 * 131072
    return base, clients, folder / "base.safetensors", paths


@every
def test_stores_chunks_threads_and_order_give_the_same_bits(rule, on_disk):
    base, clients, base_file, paths = on_disk
    metrics, threads = reports(list(clients)), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = aggregate(rule, base, clients)
        for count, chunk, order in (
            (1, None, 1),
            (1, 1, -1),
            (2, 200_000, 1),
            (3, None, -1),
            (4, 131072, 1),
        ):
            torch.set_num_threads(count)
            names = list(clients)[::order]
            store = SafetensorsStore.open(base_file, {c: paths[c] for c in names})
            streamed = aggregate(rule, None, store, metrics=metrics, round=ROUND, chunk=chunk)
            held = aggregate(
                rule, base, {c: clients[c] for c in names}, metrics=metrics, chunk=chunk
            )
            for out in (streamed, held):
                assert equal(out.params, expected.params)
                assert torch.equal(
                    out.weights[..., ::order] if order > 0 else out.weights.flip(-1),
                    expected.weights,
                )
            assert equal_states(streamed.state, expected.state)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if not rule.needs.probe], ids=to_text
)
def test_a_merge_writes_the_bits_of_the_call(rule, tmp_path):
    """Tensors of odd sizes: layers begin anywhere in memory."""
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        base = {
            name: torch.randn(size, generator=g)
            for name, size in (("a", 33), ("b", 25), ("c", 100), ("d", 61))
        }
        clients = {
            f"c{k}": {
                name: value + 0.05 * torch.randn(value.shape, generator=g)
                for name, value in base.items()
            }
            for k in range(9)
        }
        for name, params in {"base": base, **clients}.items():
            save_file(params, tmp_path / f"{name}.safetensors")
        expected = aggregate(rule, base, clients)
        paths = {client: tmp_path / f"{client}.safetensors" for client in clients}
        merge = steelyard.Merge(
            tmp_path / "base.safetensors", paths, rule, metrics=reports(list(clients))
        )
        merge.run(tmp_path / "merged.safetensors", round=ROUND, force=True)
        assert equal(load_file(tmp_path / "merged.safetensors"), expected.params)


@pytest.mark.parametrize(
    "rule", ["nnm(median):f=2", "nnm(trimmed_mean):f=2", "guard(nnm(median):f=2)"]
)
def test_neighbours_mixed_before_a_reducer_have_the_same_bits_on_any_threads(rule):
    g = torch.Generator().manual_seed(0)
    base = torch.randn(50_000, generator=g)
    clients = base + torch.randn(9, 50_000, generator=g)
    threads, made = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            made.append(
                steelyard.aggregate(rule, base, clients, metrics={"num_examples": [1] * 9}).params
            )
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, made[0]) for one in made)


@every
def test_tied_frozen_and_adapter_parameters(rule):
    g = torch.Generator().manual_seed(0)

    def adapter(shared, k):
        made = {
            "lora_A": 0.1 * torch.randn(4, 30, generator=g),
            "lora_B": k * 0.1 * torch.randn(30, 4, generator=g),
        }
        made["frozen.weight"] = shared
        made["embed.weight"] = torch.randn(20, 4, generator=g)
        made["head.weight"] = made["embed.weight"]
        return made

    shared = torch.randn(50, 50, generator=g)
    base = adapter(shared, 0)
    clients = {f"c{k}": adapter(shared.clone(), k) for k in range(1, 6)}
    out = aggregate(rule, base, clients)
    assert out.params["head.weight"] is out.params["embed.weight"]
    if out.base.numel() == 1 and out.base.item() == 1.0:
        torch.testing.assert_close(out.params["frozen.weight"], shared)
    assert all(value.isfinite().all() for value in out.params.values())
    clients["c1"]["head.weight"] = clients["c1"]["embed.weight"] + 1
    untied = aggregate(rule, base, clients)
    assert "tied" in untied.report["quarantined"]["c1"]


def test_every_rule_is_exported_and_found():
    exported = {name for name in dir(steelyard) if not name.startswith("_")}
    assert set(RULES) - {"eq6"} <= exported
    assert steelyard.fgn_increase.name == "eq6"  # Python has a name that says what it does
    assert len(RULES) >= 24


def test_models_differ():
    """The fixtures themselves: clients are not copies of one another."""
    base, clients = cohort(3)
    assert not equal(clients["client-0"], clients["client-1"])
    assert not equal(base, model(1))
