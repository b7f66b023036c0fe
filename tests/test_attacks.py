"""Attacks on whole runs: the attack matrix, and rows T26 to T28 of the reliability matrix."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import steelyard

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "attack_matrix.py"


@pytest.fixture(scope="module")
def matrix():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("attack_matrix", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attack_matrix"] = module
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def accuracy(matrix):
    """`accuracy(rule, attack, attackers, seeds)`: the mean of a cell."""

    def mean(rule, attack="none", attackers=0, seeds=1):
        return (
            sum(
                matrix.run_cell(matrix.Cell(rule, attack, attackers, seed)) for seed in range(seeds)
            )
            / seeds
        )

    return mean


@pytest.mark.slow
def test_the_command_prints_the_table_and_goes_on_where_it_was(tmp_path, matrix):
    path = tmp_path / "matrix.csv"
    command = [sys.executable, str(SCRIPT), "--quick", "--processes", "1", "--out", str(path)]
    first = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    table = first.stdout.splitlines()
    assert table[0] == "| rule | none | x100 | label flip |"
    assert [line.count("|") for line in table] == [5, 5, 5, 5]
    assert [line.split("|")[1].strip() for line in table[2:]] == ["`fedavg`", "`guard(fedavg)`"]
    assert "10 of 10" in first.stderr
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-3]) + "\n")
    again = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "3 of 3" in again.stderr
    assert again.stdout == first.stdout
    results = matrix.read_results(path)
    assert results["fedavg", "x100", "1", "0"] < results["fedavg", "none", "0", "0"] - 0.2
    assert (
        results["guard(fedavg)", "x100", "1", "0"]
        > results["guard(fedavg)", "none", "0", "0"] - 0.03
    )


def test_the_page_shows_the_runs_on_record(matrix):
    results = matrix.read_results(ROOT / "docs" / "results" / "attack-matrix.csv")
    assert len(results) == len(matrix.make_cells(matrix.RULES, matrix.ATTACKS, 3))
    table = matrix.format_table(results, matrix.RULES, matrix.ATTACKS, 3)
    assert table in (ROOT / "docs" / "guard.md").read_text()


def test_every_attack_changes_what_attackers_send(matrix):
    updates = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    for attack in set(matrix.ATTACKS) - {"label flip"}:
        metrics = {name: [10] * 20 for name in ("num_examples", "num_steps", "normalizer")}
        sent = matrix.attack_updates(attack, updates, (3, 7), metrics, seed=0)
        changed = (sent != updates).any(dim=1)
        assert changed.nonzero().flatten().tolist() == [3, 7], attack
    step = matrix._largest_hidden_step(updates)
    hidden = updates.mean(dim=0) - step * updates.std(dim=0)
    farthest = torch.cdist(updates, updates).max().item()
    assert (updates - hidden).norm(dim=1).max().item() == pytest.approx(farthest, rel=1e-4)


@pytest.mark.parametrize("rule", ["guard(fedavg)", "guard(fedadp)", "guard(fednova)"])
def test_a_faked_size_costs_at_most_five_points(matrix, accuracy, monkeypatch, rule):
    """Against the same attacker that tells its size; the guard caps what it cannot check."""
    faked = accuracy(rule, "faked size", 1, seeds=2)
    honest = matrix.attack_updates

    def without_the_fake(kind, updates, attackers, metrics, seed):
        return honest(
            kind, updates, attackers, {name: list(values) for name, values in metrics.items()}, seed
        )

    monkeypatch.setattr(matrix, "attack_updates", without_the_fake)
    assert faked > accuracy(rule, "faked size", 1, seeds=2) - 0.05
    assert accuracy("fedavg", "faked size", 1) > 0.5  # the fake itself is gone here


def test_t26_collusion(accuracy):
    """What docs/guard.md says: 30 % in collusion take guarded FedAdp below FedAvg, and mixing neighbours helps it."""
    for attack in ("sybils", "min-max"):
        guarded = accuracy("guard(fedadp)", attack, 6)
        assert guarded < accuracy("fedavg", attack, 6) - 0.2
        assert guarded < accuracy("guard(nnm(fedadp):f=6)", attack, 6) - 0.1


def run_backdoor(matrix, rule, scale, rounds=15):
    """Accuracy and the attack's success: one client of 20 teaches the model that a bright corner means class 0.

    Args:
        matrix: the example.
        rule: the rule.
        scale: what the attacker multiplies its update by; about 20 replaces the model under FedAvg.
        rounds: it attacks in the last five of them.
    """
    torch.set_num_threads(1)
    federation = steelyard.Federation.partitioned(
        *steelyard.data.load("digits"), "dirichlet:0.5", 20, 0
    )
    clients = matrix.Clients(federation, 0, reports_losses=False)
    poisoned = matrix.Clients(federation, 0, reports_losses=False)
    brightest = clients.inputs.max()
    poisoned.inputs = poisoned.inputs.clone()
    poisoned.targets = poisoned.targets.clone()
    marked = poisoned.indices[0][::2]
    poisoned.inputs[marked[:, None], torch.tensor([0, 1, 8])] = brightest
    poisoned.targets[marked] = 0
    model, state = clients.first_model(), None
    for number in range(1, rounds + 1):
        updates, metrics = clients.train(model)
        if number > rounds - 5 and scale:
            bad, _ = poisoned.train(model)
            updates[0] = scale * bad[0]
        result = steelyard.aggregate(
            rule, model, model + updates, metrics=metrics, state=state, round=number
        )
        model, state = result.params, result.state
    test = federation.test
    others = test.targets != 0
    inputs = test.inputs.reshape(len(test.inputs), -1)[others].clone()
    inputs[:, [0, 1, 8]] = brightest
    triggered = type(test)(inputs, torch.zeros(len(inputs), dtype=torch.int64), 10)
    return clients.test_accuracy(model, test), clients.test_accuracy(model, triggered)


def test_t27_a_backdoor_by_model_replacement(matrix):
    _, plain_success = run_backdoor(matrix, "fedavg", 20)
    clean, clean_success = run_backdoor(matrix, "guard(fedavg)", 0)
    guarded, success = run_backdoor(matrix, "guard(fedavg)", 20)
    assert plain_success > 0.8
    assert clean_success < success <= 0.1
    assert guarded >= clean - 0.03


def test_t28_a_sleeper_under_fedadp():
    """Fifty honest rounds, then the attack: FedAdp forgets at 1/t, so only the guard's bound holds at once."""
    noise = torch.Generator().manual_seed(0)
    base, common = torch.zeros(200), torch.randn(200, generator=noise)
    state, shares = None, []
    for number in range(1, 71):
        clients = base + common + 0.5 * torch.randn(20, 200, generator=noise)
        if number > 50:
            clients[7] = base - 10 * common
        metrics = {"num_examples": [10] * 20}
        out = steelyard.aggregate(
            "guard(fedadp)", base, clients, metrics=metrics, state=state, round=number
        )
        state = out.state
        norms = (clients - base).norm(dim=1)
        shares.append(out.weights[7].item() / out.report["clipped"].get(7, 1.0))
        assert out.weights[7].item() * norms[7].item() <= 6 / 20 * norms.median().item() * (
            1 + 1e-6
        )
    assert shares[49] == pytest.approx(1 / 20, rel=0.1)
    assert (
        shares[54] > 0.5 / 20
    )  # five rounds later it is still trusted: the paper's memory has no end
    assert shares[69] < shares[54]
    assert all(math.isfinite(share) for share in shares)
