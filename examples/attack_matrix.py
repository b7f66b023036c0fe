"""Rules under attack: the test accuracy of each rule, plain and guarded, under each attack.

    python examples/attack_matrix.py                  # the whole matrix: about ten minutes of one core
    python examples/attack_matrix.py --quick          # a few rules and attacks, one seed: some seconds
    python examples/attack_matrix.py --markdown       # prints the table of what is in --out, and runs nothing

Twenty clients share the embedded digits, skewed by Dirichlet(0.5), and train a small network for 20
rounds. One client, or 30 % of them, attack in every round. Attackers know all honest updates of the
round (the worst case). Results are appended to a CSV file, one line per run; runs that are in it
already are not made again.

    x100          the own update a hundredfold
    -10x          the own update tenfold, in the opposite direction
    -1x           the own update in the opposite direction
    faked size    the same, by a client that claims a billion samples (and as much work)
    label flip    honest training on data whose label y is 9 - y
    alie          mean - z * deviation of the honest updates, coordinate by coordinate ("a little is enough"), z = 1.5
    min-max       mean - gamma * deviation, with the largest gamma whose distance to any honest update is no larger than
                  the largest distance between two honest ones
    ipm 0.5, 2    minus 0.5 or 2 times the mean of the honest updates (inner-product manipulation)
    sybils        all attackers send one and the same random direction, of the honest updates' median length

The server of `fltrust` has ten clean samples of each class, taken from the clients' training data,
and trains on them as a client does: one epoch, the same batch size and learning rate.
"""

import argparse
import csv
import math
import multiprocessing
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import steelyard
from steelyard.data import corrupt, find_corrupted_clients

CLIENTS = 20
ROUNDS = 20
HIDDEN = 32
BATCH = 16
RATE = 0.1
Z_ALIE = 1.5
ATTACKS = (
    "x100",
    "-10x",
    "-1x",
    "faked size",
    "label flip",
    "alie",
    "min-max",
    "ipm 0.5",
    "ipm 2",
    "sybils",
)
PLAIN = (
    "fedavg",
    "uniform",
    "fedadp",
    "fedawa",
    "pa3fed",
    "ldawa:layers=[32,2048,10,320]",
    "fednova",
    "krum:f=6",
)
RULES = (
    *(text for rule in PLAIN for text in (rule, f"guard({rule})")),
    "multikrum:f=6",
    "median",
    "trimmed_mean:f=6",
    "geometric_median",
    "guard(nnm(fedavg):f=6)",
    "guard(nnm(fedadp):f=6)",
    "nnm(median):f=6",
    "fltrust",
    "mgda",
    "fedmgda",
    "model_stock:layers=[32,2048,10,320]",
    "fedexp",
    "fedlws:layers=[32,2048,10,320]",
    "craft:lr=5,length=mean,layers=[32,2048,10,320]",
    "fedce:score=none",
)
ROOT_SAMPLES = 10  # of each class, for rules that need proxy data
QUICK = {"rules": ("fedavg", "guard(fedavg)"), "attacks": ("x100", "label flip"), "seeds": 1}
LOSSES = frozenset({"loss", "loss_before", "grad_norm"})
FIELDS = ("rule", "attack", "attackers", "seed", "accuracy")


@dataclass(frozen=True)
class Cell:
    """One run: a rule, an attack (or "none") by so many clients, and a seed."""

    rule: str
    attack: str
    attackers: int
    seed: int

    @property
    def key(self):
        return (self.rule, self.attack, str(self.attackers), str(self.seed))


class Clients:
    """All clients' data in one tensor, and their local training, side by side: one network per client.

    Args:
        federation: who has which samples.
        seed: of the first model and of the batches.
        reports_losses: whether clients also report losses and gradient norms, which takes time.
    """

    def __init__(self, federation, seed, reports_losses=True):
        self.reports_losses = reports_losses
        self.generator = torch.Generator().manual_seed(seed)
        train = federation.train
        self.inputs = train.inputs.reshape(len(train.inputs), -1).float()
        self.targets = train.targets
        self.indices = [torch.as_tensor(federation.index[k]) for k in range(CLIENTS)]
        self.sizes = [len(index) for index in self.indices]
        width = self.inputs.shape[1]
        self.shapes = {
            "0.bias": (HIDDEN,),
            "0.weight": (HIDDEN, width),
            "1.bias": (10,),
            "1.weight": (10, HIDDEN),
        }

    def first_model(self):
        """A random model, as one flat vector."""
        parts = []
        for shape in self.shapes.values():
            scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.0
            parts.append(scale * torch.randn(shape, generator=self.generator).flatten())
        return torch.cat(parts)

    def tensors(self, models):
        """The tensors of flat models `[C, d]`, by name, each `[C, ...]`."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(models, sizes, dim=1)
        return {
            name: part.view(-1, *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def train(self, model):
        """One local epoch of SGD for every client; returns their updates `[CLIENTS, d]` and what they report."""
        stacked = {
            name: value.clone() for name, value in self.tensors(model.expand(CLIENTS, -1)).items()
        }
        steps = torch.tensor([-(-size // BATCH) for size in self.sizes])
        metrics = {
            "num_examples": list(self.sizes),
            "num_steps": steps.tolist(),
            "normalizer": steps.double().tolist(),
        }
        if self.reports_losses:
            metrics["loss_before"], metrics["grad_norm"] = self._score(stacked)
        batches = self._batches(int(steps.max()))
        for step, batch in enumerate(batches):
            active = (steps > step).float()
            losses = self._losses(stacked, batch)
            gradients = torch.autograd.grad((losses * active).sum(), list(stacked.values()))
            with torch.no_grad():
                for value, gradient in zip(stacked.values(), gradients, strict=True):
                    value.sub_(gradient, alpha=RATE)
        if self.reports_losses:
            metrics["loss"], _ = self._score(stacked)
        models = torch.cat([value.detach().flatten(1) for value in stacked.values()], dim=1)
        return models - model, metrics

    def test_accuracy(self, model, test):
        """The share of test samples that a flat model gets right."""
        inputs = test.inputs.reshape(1, len(test.inputs), -1).float()
        answers = _outputs(self.tensors(model[None]), inputs)[0].argmax(dim=1)
        return float((answers == test.targets).float().mean())

    def _batches(self, steps):
        """Positions of the samples of each step, `[steps, CLIENTS, BATCH]`: epochs in random order, again and again."""
        rows = []
        for index in self.indices:
            order = torch.cat(
                [index[torch.randperm(len(index), generator=self.generator)] for _ in range(2)]
            )
            while len(order) < steps * BATCH:
                order = torch.cat([order, order])
            rows.append(order[: steps * BATCH].view(steps, BATCH))
        return torch.stack(rows, dim=1)

    def _losses(self, stacked, batch):
        """The mean loss of each client's network on its samples, `[CLIENTS]`."""
        for value in stacked.values():
            value.requires_grad_(True)
        logits = _outputs(stacked, self.inputs[batch])
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), self.targets[batch].flatten(), reduction="none"
        )
        return losses.view(batch.shape).mean(dim=1)

    def _score(self, stacked):
        """Loss and gradient norm of each client's network on a sample of its data."""
        batch = torch.stack([index[torch.arange(4 * BATCH) % len(index)] for index in self.indices])
        losses = self._losses(stacked, batch)
        gradients = torch.autograd.grad(losses.sum(), list(stacked.values()))
        squares = sum(gradient.flatten(1).square().sum(dim=1) for gradient in gradients)
        return losses.tolist(), squares.sqrt().tolist()


class Network(torch.nn.Module):
    """The network of one client, with its parameters in the order of the flat vectors."""

    def __init__(self, shapes):
        super().__init__()
        self.values = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes.values())

    def forward(self, inputs):
        """Logits `[n, 10]` of inputs `[n, width]`."""
        bias, weight, last_bias, last_weight = self.values
        hidden = torch.nn.functional.linear(inputs, weight, bias).relu()
        return torch.nn.functional.linear(hidden, last_weight, last_bias)


def make_probe(clients, seed):
    """The server's clean samples, for rules that need proxy data: the same number of each class."""
    order = torch.randperm(len(clients.targets), generator=torch.Generator().manual_seed(seed))
    labels = clients.targets[order]
    rows = torch.cat([order[labels == label][:ROOT_SAMPLES] for label in range(10)])
    network = Network(clients.shapes)
    inputs, targets = clients.inputs[rows], clients.targets[rows]
    return steelyard.Probe(network, inputs, targets, BATCH, seed=seed)


def _outputs(stacked, inputs):
    """Logits of stacked networks `[C, ...]` on inputs `[C, n, width]`."""
    hidden = torch.baddbmm(
        stacked["0.bias"][:, None], inputs, stacked["0.weight"].transpose(1, 2)
    ).relu()
    return torch.baddbmm(stacked["1.bias"][:, None], hidden, stacked["1.weight"].transpose(1, 2))


def attack_updates(kind, updates, attackers, metrics, seed):
    """The updates `[CLIENTS, d]` with those of the attackers replaced; reports in `metrics` are faked in place.

    Args:
        kind: the attack's name; "none" and "label flip" change nothing here.
        updates: what honest training gave, of all clients.
        attackers: positions of the attacking clients.
        metrics: what clients report, by name: lists.
        seed: of the sybils' direction, which is the same in every round.
    """
    honest = torch.tensor([k for k in range(len(updates)) if k not in attackers])
    others = updates[honest]
    mean = others.mean(dim=0)
    updates = updates.clone()
    rows = list(attackers)
    if kind == "x100":
        updates[rows] *= 100
    elif kind == "-10x":
        updates[rows] *= -10
    elif kind == "-1x":
        updates[rows] *= -1
    elif kind == "faked size":
        updates[rows] *= -1
        for name in ("num_examples", "num_steps", "normalizer"):
            for row in rows:
                metrics[name][row] = 10**9
    elif kind == "alie":
        updates[rows] = mean - Z_ALIE * others.std(dim=0)
    elif kind == "min-max":
        updates[rows] = mean - _largest_hidden_step(others) * others.std(dim=0)
    elif kind.startswith("ipm"):
        updates[rows] = -float(kind.split()[1]) * mean
    elif kind == "sybils":
        direction = torch.randn(updates.shape[1], generator=torch.Generator().manual_seed(seed))
        updates[rows] = direction * others.norm(dim=1).median() / direction.norm()
    return updates


def _largest_hidden_step(others):
    """The largest gamma for which `mean - gamma * deviation` is as near to all as the two farthest honest updates."""
    mean, deviation = others.mean(dim=0), others.std(dim=0)
    farthest = torch.cdist(others, others).max()
    low, high = 0.0, 100.0
    for _ in range(30):
        middle = (low + high) / 2
        inside = (others - (mean - middle * deviation)).norm(dim=1).max() <= farthest
        low, high = (middle, high) if inside else (low, middle)
    return low


def choose_attackers(federation, count, seed):
    """Who attacks: as many clients as asked for, those whose data `corrupt` would change."""
    ids = find_corrupted_clients(federation, count / CLIENTS, seed=seed) if count else ()
    return tuple(federation.ids.index(client) for client in ids)


def run_cell(cell, rounds=ROUNDS):
    """The test accuracy at the end of a run."""
    torch.set_num_threads(1)
    federation = steelyard.Federation.partitioned(
        *steelyard.data.load("digits"), "dirichlet:0.5", CLIENTS, cell.seed
    )
    attackers = choose_attackers(federation, cell.attackers, cell.seed)
    needs = steelyard.parse_rule(cell.rule).needs
    probe = None
    if needs.probe:
        probe = make_probe(Clients(federation, cell.seed), cell.seed)  # before labels are flipped
    if cell.attack == "label flip":
        federation = corrupt(federation, cell.attackers / CLIENTS, "flip", seed=cell.seed)
    clients = Clients(federation, cell.seed, reports_losses=not needs.metrics.isdisjoint(LOSSES))
    model = clients.first_model()
    state = None
    for number in range(1, rounds + 1):
        updates, metrics = clients.train(model)
        updates = attack_updates(cell.attack, updates, attackers, metrics, cell.seed)
        try:
            result = steelyard.aggregate(
                cell.rule,
                model,
                model + updates,
                metrics=metrics,
                state=state,
                round=number,
                probe=probe,
            )
        except steelyard.SteelyardError:
            break  # the model overflowed: the run is lost, and its last model counts
        model, state = result.params, result.state
    return clients.test_accuracy(model, federation.test)


def make_cells(rules, attacks, seeds):
    """Every run of the matrix."""
    cells = []
    for seed in range(seeds):
        for rule in rules:
            cells.append(Cell(rule, "none", 0, seed))
            cells += [Cell(rule, attack, count, seed) for attack in attacks for count in (1, 6)]
    return cells


def read_results(path):
    """Accuracies by cell key, from the CSV file; none if there is no such file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["accuracy"]]
    return {tuple(row[name] for name in FIELDS[:4]): float(row["accuracy"]) for row in rows}


def run_matrix(cells, path, processes):
    """Runs the cells that are not in the file yet, and appends each result to it."""
    done = read_results(path)
    missing = [cell for cell in cells if cell.key not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(FIELDS)
        for number, (cell, accuracy) in enumerate(_run_all(missing, processes), 1):
            writer.writerow((*cell.key, f"{accuracy:.4f}"))
            file.flush()
            print(f"{number} of {len(missing)}: {cell} {accuracy:.3f}", file=sys.stderr)


def _run_all(cells, processes):
    """Cells and their accuracies, in the order in which they are ready."""
    if processes == 1:
        yield from map(_run_named, cells)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_run_named, cells)


def _run_named(cell):
    return cell, run_cell(cell)


def format_table(results, rules, attacks, seeds):
    """The matrix as Markdown: means over seeds in percent, for one attacker / for 30 %."""
    lines = [
        "| rule | none | " + " | ".join(attacks) + " |",
        "|---|" + "---|" * (len(attacks) + 1),
    ]
    for rule in rules:
        cells = [_mean(results, rule, "none", 0, seeds)]
        for attack in attacks:
            one, many = (_mean(results, rule, attack, count, seeds) for count in (1, 6))
            cells.append(f"{one} / {many}")
        lines.append(f"| `{rule}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(results, rule, attack, attackers, seeds):
    values = [results.get((rule, attack, str(attackers), str(seed))) for seed in range(seeds)]
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.0f}" if known else "-"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/attack-matrix.csv"), help="the CSV file of results"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="seeds 0, 1, ... of partition, model, batches, attackers",
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--rules", nargs="+", default=None, help="rules instead of all")
    parser.add_argument(
        "--attacks", nargs="+", choices=ATTACKS, default=None, help="attacks instead of all"
    )
    parser.add_argument("--quick", action="store_true", help="two rules, two attacks, one seed")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of what is there, and run nothing"
    )
    arguments = parser.parse_args()
    rules = arguments.rules or (QUICK["rules"] if arguments.quick else RULES)
    attacks = arguments.attacks or (QUICK["attacks"] if arguments.quick else ATTACKS)
    seeds = QUICK["seeds"] if arguments.quick else arguments.seeds
    if not arguments.markdown:
        run_matrix(make_cells(rules, attacks, seeds), arguments.out, arguments.processes)
    print(format_table(read_results(arguments.out), rules, attacks, seeds))


if __name__ == "__main__":
    main()
