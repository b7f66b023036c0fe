"""CRAFT against the authors' code: executed, and its steps written on whole vectors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import steelyard
from steelyard.stores._safetensors import SafetensorsStore
from steelyard.testing import check_rule
from tests.golden import arrays, assert_near, tensor
from tests.rounds import aggregate_arrays, equal

SIZES = (6, 24, 10)
RULE = steelyard.craft(layers=SIZES, rtol=1e-6)


def draw_round(rng, theta, count):
    return theta + rng.normal(size=(count, len(theta))), rng.integers(1, 30, count)


def resolve_conflicts(theta, models, sizes, last, lr=0.1, length="unit"):
    """The step of the authors' code, layer by layer, and the new model; `last` may be None."""
    steps = []
    start = 0
    for size in SIZES:
        layer = slice(start, start + size)
        start += size
        gradients = theta[layer] - models[:, layer]  # the code has the sign of gradients
        norms = np.linalg.norm(gradients, axis=1)
        used = norms > 0
        if used.sum() == 0:
            steps.append(np.zeros(size))
            continue
        if used.sum() == 1:
            steps.append(gradients[used][0])
            continue
        shares = sizes[used] / sizes[used].sum()
        directions = gradients[used] / norms[used, None]
        reference = np.zeros(size)
        if last is not None and np.linalg.norm(last[layer]) > 0:
            reference = last[layer] / np.linalg.norm(last[layer])
        step = reference + np.linalg.pinv(directions) @ (shares - directions @ reference)
        steps.append(step * (norms[used].mean() if length == "mean" else 1.0))
    step = np.concatenate(steps)
    return step, theta - lr * step


def test_the_authors_code_executed():
    """Six rounds with other clients each; single clients, and layers that few clients change."""
    data = arrays("craft")
    rule = steelyard.craft(layers=(48, 35, 12), rtol=1e-7)
    theta, state = data["start"], None
    for number in range(6):
        cohort = data[f"cohort{number}"]
        out = steelyard.aggregate(
            rule,
            tensor(theta),
            tensor(data[f"models{number}"]),
            ids=cohort.tolist(),
            metrics={"num_examples": data["sizes"][cohort].tolist()},
            state=state,
        )
        assert_near(out.params, data[f"after{number}"])
        theta, state = data[f"after{number}"], out.state


@pytest.mark.parametrize("count", [2, 3, 9, 30])  # 9 and 30: more clients than coordinates
@pytest.mark.parametrize("length", ["unit", "mean"])
def test_the_steps_of_the_authors_code(count, length):
    rng = np.random.default_rng(count)
    theta = rng.normal(size=sum(SIZES))
    rule = steelyard.craft(layers=SIZES, rtol=1e-6, length=length)
    last, state = None, None
    for _ in range(4):
        models, sizes = draw_round(rng, theta, count)
        last, expected = resolve_conflicts(theta, models, sizes, last, length=length)
        out = aggregate_arrays(rule, theta, models, sizes, state=state)
        np.testing.assert_allclose(out.params, expected, rtol=1e-9, atol=1e-9)
        theta, state = expected, out.state


def test_layers_that_few_clients_change():
    """No client changes the first layer, one the second, and two the third."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=sum(SIZES))
    models, sizes = draw_round(rng, theta, 3)
    models[:, :6] = theta[:6]
    models[1:, 6:30] = theta[6:30]
    models[0, 30:] = theta[30:]
    last, expected = resolve_conflicts(theta, models, sizes, None)
    out = aggregate_arrays(RULE, theta, models, sizes)
    np.testing.assert_allclose(out.params, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(out.params[:6], torch.from_numpy(theta[:6]))
    models, sizes = draw_round(rng, expected, 3)
    _, second = resolve_conflicts(expected, models, sizes, last)
    again = aggregate_arrays(RULE, expected, models, sizes, state=out.state)
    np.testing.assert_allclose(again.params, second, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4))
def test_no_client_is_moved_backwards(seed, count, rounds):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=sum(SIZES))
    state = None
    for _ in range(rounds):
        models, sizes = draw_round(rng, theta, count)
        out = aggregate_arrays(RULE, theta, models, sizes, state=state)
        step = out.params.numpy() - theta
        start = 0
        for size in SIZES:
            layer = slice(start, start + size)
            start += size
            updates = models[:, layer] - theta[layer]
            components = updates @ step[layer] / np.linalg.norm(updates, axis=1)
            np.testing.assert_allclose(components, 0.1 * sizes / sizes.sum(), rtol=1e-6, atol=1e-8)
        theta, state = out.params.numpy(), out.state


def test_nearly_equal_updates_do_not_blow_up_the_step():
    rng = np.random.default_rng(1)
    theta = rng.normal(size=sum(SIZES))
    update = rng.normal(size=sum(SIZES))
    models = theta + update + 1e-7 * rng.normal(size=(4, sum(SIZES)))
    sizes = np.array([1, 100, 1, 100])
    out = aggregate_arrays(steelyard.craft(layers=SIZES), theta, models, sizes)
    assert np.linalg.norm(out.params.numpy() - theta) < 0.1


def test_the_contract():
    check_rule(RULE.__class__(), sums_to_one=False)


def test_the_report_knows_the_whole_step():
    """Its length and cosines include the part of the previous step."""
    rng = np.random.default_rng(5)
    theta = rng.normal(size=sum(SIZES))
    state = None
    for _ in range(3):
        models, sizes = draw_round(rng, theta, 4)
        out = aggregate_arrays(RULE, theta, models, sizes, state=state)
        step = out.params.numpy() - theta
        assert out.report["update_norm"] == pytest.approx(np.linalg.norm(step), rel=1e-9)
        updates = models - theta
        lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(step)
        cosines = list(out.report["cosines"].values())
        np.testing.assert_allclose(cosines, updates @ step / lengths, atol=1e-9)
        theta, state = out.params.numpy(), out.state


def test_a_server_optimizer_acts_on_the_step():
    rng = np.random.default_rng(6)
    theta = rng.normal(size=sum(SIZES))
    models, sizes = draw_round(rng, theta, 4)
    half = aggregate_arrays(RULE, theta, models, sizes, server="sgd:lr=0.5")
    whole = aggregate_arrays(RULE, theta, models, sizes)
    step, whole_step = half.params.numpy() - theta, whole.params.numpy() - theta
    np.testing.assert_allclose(step, 0.5 * whole_step, rtol=1e-9)
    # The previous step is that of the rule, before the optimizer.
    assert torch.equal(half.state["last_step"], whole.state["last_step"])


def test_shrink_multiplies_all_parts_of_the_model():
    rng = np.random.default_rng(7)
    theta = rng.normal(size=sum(SIZES))
    models, sizes = draw_round(rng, theta, 4)
    first = aggregate_arrays(RULE, theta, models, sizes)
    models, sizes = draw_round(rng, theta, 4)
    plain = aggregate_arrays(RULE, theta, models, sizes, state=first.state)
    state = {"craft": {}, **first.state}
    shrunk = aggregate_arrays(steelyard.shrink(RULE, 0.9), theta, models, sizes, state=state)
    np.testing.assert_allclose(shrunk.params, 0.9 * plain.params, rtol=1e-12)


def test_no_later_rule_changes_its_weights():
    with pytest.raises(steelyard.SteelyardError, match="leave one of them out"):
        steelyard.parse_rule("craft|fedadp")
    assert steelyard.parse_rule("feddisco|craft").needs.last_step


def test_a_guard_bounds_the_step():
    rng = np.random.default_rng(8)
    theta = rng.normal(size=sum(SIZES))
    rule = steelyard.guard(steelyard.craft(lr=1.0, layers=SIZES, length="mean"))
    state = None
    for _ in range(3):
        models, sizes = draw_round(rng, theta, 5)
        models[0] = theta + 1e6
        out = aggregate_arrays(rule, theta, models, sizes, state=state)
        median = np.median(np.linalg.norm(models - theta, axis=1))
        assert np.linalg.norm(out.params.numpy() - theta) <= 2 * median * (1 + 1e-6)
        theta, state = out.params.numpy(), out.state


def test_a_closed_gate_also_remembers_the_step():
    rng = np.random.default_rng(9)
    theta = rng.normal(size=sum(SIZES))
    models, sizes = draw_round(rng, theta, 3)
    rule = steelyard.gate(steelyard.fgn_increase(), RULE)
    metrics = {"num_examples": sizes.tolist(), "grad_norm": [1.0, 1.0, 1.0]}
    outs = []
    state = None
    for norm in (1.0, 0.1):  # critical, then not
        metrics["grad_norm"] = [norm] * 3
        out = steelyard.aggregate(
            rule, torch.from_numpy(theta), torch.from_numpy(models), metrics=metrics, state=state
        )
        outs.append(out)
        state = out.state
    assert [out.report["critical"] for out in outs] == [True, False]
    step = outs[1].params.numpy() - theta
    np.testing.assert_allclose(outs[1].state["last_step"], step, rtol=1e-9, atol=1e-12)


def test_a_state_of_another_model_is_refused():
    rng = np.random.default_rng(10)
    theta = rng.normal(size=sum(SIZES))
    models, sizes = draw_round(rng, theta, 3)
    state = {"last_step": torch.ones(7, dtype=torch.float64)}
    with pytest.raises(steelyard.SteelyardError, match="7 parameters, this one has 40"):
        aggregate_arrays(RULE, theta, models, sizes, state=state)


def test_lora_adapters_are_refused():
    base = {
        "base_model.model.fc.lora_A.weight": torch.ones(2, 4),
        "base_model.model.fc.lora_B.weight": torch.zeros(3, 2),
    }
    clients = [{name: tensor + k for name, tensor in base.items()} for k in (1, 2)]
    with pytest.raises(steelyard.SteelyardError, match="LoRA adapters do not have as one vector"):
        steelyard.aggregate("uniform|craft", base, clients)


def test_the_same_bits_from_memory_and_from_files(tmp_path):
    torch.manual_seed(0)
    base = {"a.weight": torch.randn(40, 30), "a.bias": torch.randn(40), "b.weight": torch.randn(7)}
    state = file_state = None
    for _ in range(3):
        clients = [
            {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in base.items()}
            for _ in range(4)
        ]
        save_file(base, tmp_path / "base.safetensors")
        paths = {}
        for k, client in enumerate(clients):
            paths[k] = tmp_path / f"{k}.safetensors"
            save_file(client, paths[k])
        out = steelyard.aggregate("uniform|craft", base, clients, state=state)
        store = SafetensorsStore.open(tmp_path / "base.safetensors", paths)
        again = steelyard.aggregate("uniform|craft", None, store, state=file_state, chunk=500)
        assert equal(out.params, again.params)
        assert torch.equal(out.state["last_step"], again.state["last_step"])
        base, state, file_state = out.params, out.state, again.state


def test_a_run_resumes_with_the_same_bits(tmp_path):
    options = {"rounds": 6, "clients": 4, "model": "logistic", "seed": 3}
    whole = steelyard.simulate("craft", "digits", **options)
    out = tmp_path / "run"

    class Stop(steelyard.Callback):
        def round(self, run, record):
            return record["round"] == 3

    steelyard.simulate("craft", "digits", out=out, callbacks=[Stop()], **options)
    resumed = steelyard.simulate("craft", "digits", out=out, resume=True, **options)
    assert [record["accuracy"] for record in resumed] == [record["accuracy"] for record in whole]
    assert [record["weights"] for record in resumed] == [record["weights"] for record in whole]


def test_a_run_can_be_replayed_and_other_runs_cannot(tmp_path):
    options = {"rounds": 4, "clients": 4, "model": "logistic", "record": "gram:layers=module"}
    steelyard.simulate("craft", "digits", out=tmp_path / "craft", **options)
    replay = steelyard.replay(tmp_path / "craft", ["craft", "fedavg"])
    for replayed, run in zip(replay.rounds["craft"], replay.rounds["run"], strict=True):
        assert replayed.weights == pytest.approx(run.weights, rel=1e-12, abs=1e-15)
        assert replayed.cosine == pytest.approx(1.0, abs=1e-9)
        assert replayed.step_norm == pytest.approx(run.step_norm, rel=1e-12)
    norms = [record["update_norm"] for record in steelyard.History.read(tmp_path / "craft")]
    assert [entry.step_norm for entry in replay.rounds["run"]] == pytest.approx(norms, rel=1e-9)

    steelyard.simulate("fedavg", "digits", out=tmp_path / "fedavg", **options)
    with pytest.raises(steelyard.SteelyardError, match="run it instead"):
        steelyard.replay(tmp_path / "fedavg", ["craft"])
    with pytest.raises(steelyard.SteelyardError, match="run it instead"):
        steelyard.simulate("fedavg", "digits", shadow=["craft"], **options)
