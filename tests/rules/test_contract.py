"""What every rule must do. Rules are found by themselves: a new one is under contract as soon as it is registered."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file

import steelyard
from steelyard.core.spec import to_text
from steelyard.core.view import View
from steelyard.rules.chain import with_default_source
from steelyard.stores.memory import MemoryStore
from steelyard.stores.safetensors import SafetensorsStore
from tests.rounds import Quadratic, cohort, equal, every_rule, model, reports

RULES = every_rule()
LATER = 4  # L-DAWA is past its warm-up by then
every = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def run(rule, base, clients, **options):
    options.setdefault("round", LATER)
    options.setdefault("metrics", reports(list(clients)))
    return aggregate(rule, base, clients, **options)


def aggregate(rule, base, clients, **options):
    """Rules that look at proxy data get some that fits any model."""
    return steelyard.aggregate(
        rule, base, clients, probe=Quadratic() if with_default_source(rule).needs.probe else None, **options
    )


@every
def test_order_of_identified_clients_does_not_change_a_bit(rule):
    base, clients = cohort()
    out = run(rule, base, clients)
    for order in ([5, 0, 3, 1, 4, 2], [5, 4, 3, 2, 1, 0]):
        ids = [list(clients)[k] for k in order]
        shuffled = run(rule, base, {c: clients[c] for c in ids}, metrics=reports(list(clients)))
        assert equal(out.params, shuffled.params)
        assert torch.equal(out.weights[..., order], shuffled.weights)
        assert torch.equal(out.base, shuffled.base)


@every
def test_permutation_equivariance(rule):
    """Renaming clients permutes the weights: positions play no part."""
    base, clients = cohort(dtype=torch.float64 if rule.needs.probe else torch.float32)  # Adam amplifies rounding
    models, table = list(clients.values()), reports(list(clients))
    order = [3, 0, 5, 1, 4, 2]
    lists = {name: [column[c] for c in clients] for name, column in table.items()}
    first = aggregate(rule, base, models, metrics=lists, round=LATER)
    second = aggregate(
        rule,
        base,
        [models[k] for k in order],
        metrics={name: [values[k] for k in order] for name, values in lists.items()},
        round=LATER,
    )
    torch.testing.assert_close(first.weights[..., order], second.weights, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(first.params, second.params, rtol=1e-5, atol=1e-6)


@every
def test_one_client(rule):
    base, clients = cohort(1)
    out = run(rule, base, clients)
    assert out.weights.shape[-1] == 1
    assert out.weights.isfinite().all()
    assert all(value.isfinite().all() for value in out.params.values())


@every
@pytest.mark.parametrize("case", ["duplicates", "one zero", "all zero"])
def test_degenerate_updates(rule, case):
    base, clients = cohort()
    ids = list(clients)
    if case == "duplicates":
        clients = dict.fromkeys(ids, clients[ids[0]])
    elif case == "one zero":
        clients[ids[2]] = base
    else:
        clients = dict.fromkeys(ids, base)
    out = run(rule, base, clients)
    assert out.weights.isfinite().all()
    assert all(value.isfinite().all() for value in out.params.values())
    if case == "all zero":  # only the base coefficient can move the model
        layer = out.report["layers"].index("fc.weight") if out.base.numel() > 1 else 0
        expected = out.base[layer].item() * base["fc.weight"]
        torch.testing.assert_close(out.params["fc.weight"], expected, rtol=1e-5, atol=1e-6)


@every
@pytest.mark.parametrize("scale", [1e-10, 1e-5, 1.0, 1e5, 1e10])
def test_any_scale_of_updates(rule, scale):
    g = torch.Generator().manual_seed(3)
    base = torch.randn(4000, generator=g)
    steps = scale * torch.randn(6, 4000, generator=g)
    clients = base.double() + steps.double()
    out = aggregate(rule, base.double(), list(clients), metrics=reports(range(6)), round=LATER)
    assert out.weights.isfinite().all()
    assert out.params.isfinite().all()


@every
def test_needs_are_sufficient_and_necessary(rule, monkeypatch):
    """The rule reads all that it declares over two rounds, and nothing else (a view raises on undeclared touches)."""
    base, clients = cohort()
    root = with_default_source(rule)
    metrics, grams, probes = set(), set(), []
    read_metric, read_gram, read_probe = View.metric, View._gram, View.probe

    def metric(view, name):
        metrics.add(name)
        return read_metric(view, name)

    def gram(view, layers):
        grams.add(layers)
        return read_gram(view, layers)

    monkeypatch.setattr(View, "metric", metric)
    monkeypatch.setattr(View, "_gram", gram)
    monkeypatch.setattr(View, "probe", property(lambda view: probes.append(view) or read_probe.fget(view)))
    table = {name: column for name, column in reports(list(clients)).items() if name in root.needs.metrics}
    first = run(rule, base, clients, metrics=table)
    if "grad_norm" in table:
        table["grad_norm"] = {c: 2 * v for c, v in table["grad_norm"].items()}  # a critical period
    run(rule, base, clients, metrics=table, state=first.state, round=LATER + 1)
    assert metrics == root.needs.metrics
    assert bool(grams) == root.needs.gram
    assert bool(probes) == root.needs.probe
    for name in root.needs.metrics:
        with pytest.raises(steelyard.SteelyardError, match=name):
            run(rule, base, clients, metrics={n: c for n, c in table.items() if n != name})


@every
def test_purity(rule):
    base, clients = cohort()
    first = run(rule, base, clients)
    table, state = reports(list(clients)), copy.deepcopy(first.state)
    before = copy.deepcopy((base, clients, table, state))
    one = run(rule, base, clients, metrics=table, state=state, round=LATER + 1)
    two = run(rule, base, clients, metrics=table, state=state, round=LATER + 1)
    assert equal(one.params, two.params)
    assert torch.equal(one.weights, two.weights)
    assert one.state == two.state
    assert equal(before[0], base)
    assert all(equal(before[1][c], clients[c]) for c in clients)
    assert before[2:] == (table, state)


@every
def test_state_survives_a_file(rule, tmp_path):
    base, clients = cohort()
    first = run(rule, base, clients)
    steelyard.save_state(tmp_path / "state", first.state)
    loaded = steelyard.load_state(tmp_path / "state")
    assert loaded == first.state
    straight = run(rule, base, clients, state=first.state, round=LATER + 1)
    resumed = run(rule, base, clients, state=loaded, round=LATER + 1)
    assert equal(straight.params, resumed.params)
    assert straight.state == resumed.state


@every
def test_changing_cohorts(rule):
    base, clients = cohort(8)
    ids, state = list(clients), None
    for t, members in enumerate([[0, 1, 2, 3], [4, 5, 6, 7], [0, 5, 2], [7, 1, 3, 4, 6]]):
        out = run(
            rule, base, {ids[k]: clients[ids[k]] for k in members}, metrics=reports(ids), state=state, round=LATER + t
        )
        assert out.weights.shape[-1] == len(members)
        assert out.weights.isfinite().all()
        base, state = out.params, out.state
    fresh = run(rule, base, {ids[0]: clients[ids[0]], ids[1]: clients[ids[1]]}, metrics=reports(ids))
    assert fresh.weights.isfinite().all()


@every
def test_one_layer_is_the_whole_model(rule):
    if rule.needs.per_layer is not None or rule.needs.coordinates:
        with pytest.raises(steelyard.SteelyardError, match="already"):
            steelyard.per_layer(rule)
        return
    if rule.needs.probe:
        with pytest.raises(steelyard.SteelyardError, match="only the whole model has"):
            steelyard.per_layer(rule)
        return
    base, clients = cohort()
    plain = run(rule, base, clients)
    layered = run(steelyard.per_layer(rule, layers=("*",)), base, clients)
    assert layered.weights.shape == (1, 6)
    assert torch.equal(layered.weights[0], plain.weights)
    assert equal(layered.params, plain.params)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(rule, dtype):
    base, clients = cohort(dtype=dtype, step=0.2)
    out = run(rule, base, clients)
    wide = run(rule, _wide(base), {c: _wide(m) for c, m in clients.items()})
    for name, value in out.params.items():
        assert value.dtype == base[name].dtype
        assert value.shape == base[name].shape
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(out.weights, wide.weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(_wide(out.params), wide.params, rtol=tolerance, atol=tolerance)


def _wide(params):
    return {name: value.double() if value.is_floating_point() else value for name, value in params.items()}


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
        expected = run(rule, base, clients)
        for count, chunk, order in ((1, None, 1), (1, 1, -1), (2, 200_000, 1), (3, None, -1), (4, 131072, 1)):
            torch.set_num_threads(count)
            names = list(clients)[::order]
            store = SafetensorsStore.open(base_file, {c: paths[c] for c in names})
            streamed = aggregate(rule, None, store, metrics=metrics, round=LATER, chunk=chunk)
            held = run(rule, base, {c: clients[c] for c in names}, metrics=metrics, chunk=chunk)
            for out in (streamed, held):
                assert equal(out.params, expected.params)
                assert torch.equal(out.weights[..., ::order] if order > 0 else out.weights.flip(-1), expected.weights)
            assert streamed.state == expected.state
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if not rule.needs.probe], ids=to_text)
def test_a_merge_writes_the_bits_of_the_call(rule, tmp_path):
    """Tensors of odd sizes: layers begin anywhere in memory."""
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        base = {name: torch.randn(size, generator=g) for name, size in (("a", 33), ("b", 25), ("c", 100), ("d", 61))}
        clients = {
            f"c{k}": {name: value + 0.05 * torch.randn(value.shape, generator=g) for name, value in base.items()}
            for k in range(9)
        }
        for name, params in {"base": base, **clients}.items():
            save_file(params, tmp_path / f"{name}.safetensors")
        expected = run(rule, base, clients)
        paths = {client: tmp_path / f"{client}.safetensors" for client in clients}
        merge = steelyard.Merge(tmp_path / "base.safetensors", paths, rule, metrics=reports(list(clients)))
        merge.run(tmp_path / "merged.safetensors", round=LATER, force=True)
        assert equal(load_file(tmp_path / "merged.safetensors"), expected.params)


@pytest.mark.parametrize("rule", ["nnm(median):f=2", "nnm(trimmed_mean):f=2", "guard(nnm(median):f=2)"])
def test_neighbours_mixed_before_a_reducer_have_the_same_bits_on_any_threads(rule):
    g = torch.Generator().manual_seed(0)
    base = torch.randn(50_000, generator=g)
    clients = base + torch.randn(9, 50_000, generator=g)
    threads, made = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            made.append(steelyard.aggregate(rule, base, clients, metrics={"num_examples": [1] * 9}).params)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, made[0]) for one in made)


@every
def test_batchnorm_statistics_stay_plausible(rule):
    base, clients = cohort()
    out = run(rule, base, clients)
    for name in ("bn.running_mean", "bn.running_var"):
        stacked = torch.stack([m[name] for m in clients.values()])
        assert (out.params[name] >= stacked.amin(0) - 1e-5).all()
        assert (out.params[name] <= stacked.amax(0) + 1e-5).all()
    assert out.params["bn.num_batches_tracked"].dtype == torch.int64
    assert out.params["bn.num_batches_tracked"].item() == 6


@every
def test_tied_frozen_and_adapter_parameters(rule):
    g = torch.Generator().manual_seed(0)

    def adapter(shared, k):
        made = {"lora_A": 0.1 * torch.randn(4, 30, generator=g), "lora_B": k * 0.1 * torch.randn(30, 4, generator=g)}
        made["frozen.weight"] = shared
        made["embed.weight"] = torch.randn(20, 4, generator=g)
        made["head.weight"] = made["embed.weight"]
        return made

    shared = torch.randn(50, 50, generator=g)
    base = adapter(shared, 0)
    clients = {f"c{k}": adapter(shared.clone(), k) for k in range(1, 6)}
    out = run(rule, base, clients)
    assert out.params["head.weight"] is out.params["embed.weight"]
    if out.base.numel() == 1 and out.base.item() == 1.0:
        torch.testing.assert_close(out.params["frozen.weight"], shared)
    assert all(value.isfinite().all() for value in out.params.values())
    clients["c1"]["head.weight"] = clients["c1"]["embed.weight"] + 1
    untied = run(rule, base, clients)
    assert "tied" in untied.report["quarantined"]["c1"]


@every
def test_text_form_builds_the_same_rule(rule):
    assert steelyard.parse_rule(to_text(rule)) == rule


def test_every_rule_is_exported_and_found():
    exported = {name for name in dir(steelyard) if not name.startswith("_")}
    assert set(RULES) <= exported
    assert len(RULES) >= 24


def test_models_differ():
    """The fixtures themselves: clients are not copies of one another."""
    base, clients = cohort(3)
    assert not equal(clients["client-0"], clients["client-1"])
    assert not equal(base, model(1))
