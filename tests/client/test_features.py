"""Feature terms equal an implementation of their formulas that shares no code with them."""

import copy
import math
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard.client._features import (
    FeatureRecorder,
    compute_prototypes,
    find_classifier,
)
from steelyard.client._fpl import cluster_points
from steelyard.core import Classifier, SteelyardError
from steelyard.core._rng import stream
from steelyard.core._side_channel import TensorSpec, find_classifier_by_shape
from steelyard.testing._term_checks import feature_context
from tests.sim.runs import clients, net, simulate

CLASSES, LR, STEPS, ROUNDS, SEED = 3, 0.1, 2, 4, 5


# A federation in plain torch: each step is the whole data of a client, so that no order matters.


def split_network(model):
    """The feature extractor and the classifier of a Sequential."""
    return model[:-1], model[-1]


class PlainFederation:
    """FedAvg with one of the three methods, written from the papers' formulas with autograd."""

    def __init__(self, model, data):
        self.model, self.data = copy.deepcopy(model), data
        self.sizes = [len(targets) for _, targets in data.values()]

    def penalty(self, features, targets):
        return 0.0

    def before(self, model, inputs, targets):
        pass

    def after(self, model, inputs, targets):
        pass

    def end_round(self, number):
        pass

    def run(self, rounds):
        for number in range(1, rounds + 1):
            self.sent = []
            models = []
            for inputs, targets in self.data.values():
                model = copy.deepcopy(self.model)
                self.before(copy.deepcopy(model).eval(), inputs, targets)
                optimizer = torch.optim.SGD(model.parameters(), lr=LR)
                for _ in range(STEPS):
                    extractor, head = split_network(model)
                    features = extractor(inputs)
                    loss = functional.cross_entropy(head(features), targets)
                    loss = loss + self.penalty(features, targets)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                with torch.no_grad():
                    self.after(model.eval(), inputs, targets)
                models.append(model.state_dict())
            shares = [size / sum(self.sizes) for size in self.sizes]
            average = {
                name: sum(share * state[name] for share, state in zip(shares, models, strict=True))
                for name in models[0]
            }
            self.model.load_state_dict(average)
            self.end_round(number)
        return self.to_evaluate()

    def to_evaluate(self):
        return self.model.state_dict()


class PlainPrototypes(PlainFederation):
    """Sends {class: (prototype, count)} after training."""

    def after(self, model, inputs, targets):
        features = split_network(model)[0](inputs)
        own = {}
        for label in range(CLASSES):
            rows = [
                feature
                for feature, target in zip(features, targets, strict=True)
                if target == label
            ]
            if rows:
                own[label] = (sum(rows) / len(rows), len(rows))
        self.sent.append(own)


class PlainFedProto(PlainPrototypes):
    weight, average, prototypes = 2.0, "counts", MappingProxyType({})

    def penalty(self, features, targets):
        total = 0.0
        for feature, target in zip(features, targets.tolist(), strict=True):
            if target in self.prototypes:
                total = total + functional.mse_loss(feature, self.prototypes[target])
        return self.weight * total / len(targets)

    def end_round(self, number):
        self.prototypes = {}
        for label in range(CLASSES):
            pairs = [own[label] for own in self.sent if label in own]
            if self.average == "clients":
                pairs = [(prototype, 1) for prototype, _ in pairs]
            if pairs:
                total = sum(count for _, count in pairs)
                self.prototypes[label] = sum(p * count for p, count in pairs) / total


class PlainFedProtoByClient(PlainFedProto):
    average = "clients"


def finch(points):
    """FINCH by its clustering equation: A(i, j) = 1 if j = k_i, or k_j = i, or k_i = k_j."""

    def link(means):
        count = len(means)
        nearest = []
        for i in range(count):
            others = [j for j in range(count) if j != i]
            nearest.append(
                min(
                    others,
                    key=lambda j: 1 - float(functional.cosine_similarity(means[i], means[j], 0)),
                )
            )
        adjacent = [
            [nearest[i] == j or nearest[j] == i or nearest[i] == nearest[j] for j in range(count)]
            for i in range(count)
        ]
        labels = [-1] * count
        for i in range(count):
            if labels[i] < 0:
                labels[i] = max(labels) + 1
                todo = [i]
                while todo:
                    at = todo.pop()
                    for j in range(count):
                        if adjacent[at][j] and labels[j] < 0:
                            labels[j] = labels[i]
                            todo.append(j)
        return labels

    if len(points) == 1:
        return [0]
    labels = link(points)
    while True:
        count = max(labels) + 1
        if count == 1:
            return labels
        means = [
            sum(p for p, label in zip(points, labels, strict=True) if label == c) / labels.count(c)
            for c in range(count)
        ]
        merged = link(means)
        if max(merged) == 0:
            return labels
        labels = [merged[label] for label in labels]


class PlainFPL(PlainPrototypes):
    temperature, clusters = 0.5, MappingProxyType({})

    def penalty(self, features, targets):
        total = 0.0
        for feature, target in zip(features, targets.tolist(), strict=True):
            if target not in self.clusters:
                continue
            exponentials = {
                label: sum(
                    torch.exp(functional.cosine_similarity(feature, p, 0) / self.temperature)
                    for p in points
                )
                for label, points in self.clusters.items()
            }
            contrast = -torch.log(exponentials[target] / sum(exponentials.values()))
            mean = sum(self.clusters[target]) / len(self.clusters[target])
            total = total + contrast + functional.mse_loss(feature, mean)
        return total / len(targets)

    def end_round(self, number):
        self.clusters = {}
        for label in range(CLASSES):
            points = [own[label][0] for own in self.sent if label in own]
            if points:
                labels = finch(points)
                self.clusters[label] = [
                    sum(p for p, cluster in zip(points, labels, strict=True) if cluster == c)
                    / labels.count(c)
                    for c in range(max(labels) + 1)
                ]


class PlainCReFF(PlainFederation):
    """Double backward through torch's own linear layer and loss; only the random numbers are ours."""

    features, match_steps, match_lr, epochs, lr, batch = 4, 3, 0.1, 2, 0.05, 5

    def __init__(self, model, data):
        super().__init__(model, data)
        self.dim = model[-1].in_features
        rng = stream(SEED, "term", 0, "creff")
        normal = rng.standard_normal((CLASSES, self.features, self.dim))
        self.invented = torch.from_numpy(normal).float()
        self.second = self.draw(rng)

    def draw(self, rng):
        layer = nn.Linear(self.dim, CLASSES)
        bound = 1 / math.sqrt(self.dim)
        values = torch.from_numpy(rng.uniform(-bound, bound, (CLASSES, self.dim + 1))).float()
        with torch.no_grad():
            layer.weight.copy_(values[:, :-1])
            layer.bias.copy_(values[:, -1])
        return layer

    def slopes(self, features, label, graph=False):
        targets = torch.full((len(features),), label)
        loss = functional.cross_entropy(self.second(features), targets)
        return torch.autograd.grad(loss, list(self.second.parameters()), create_graph=graph)

    def before(self, model, inputs, targets):
        features = split_network(model)[0](inputs).detach()
        present = sorted(set(targets.tolist()))
        self.sent.append(
            {label: self.slopes(features[targets == label], label) for label in present}
        )

    def end_round(self, number):
        for label in range(CLASSES):
            pairs = [own[label] for own in self.sent if label in own]
            if not pairs:
                continue
            weight = sum(pair[0] for pair in pairs) / len(pairs)
            bias = sum(pair[1] for pair in pairs) / len(pairs)
            points = self.invented[label].clone().requires_grad_()
            for _ in range(self.match_steps):
                own_weight, own_bias = self.slopes(points, label, graph=True)
                rows = [*zip(weight, own_weight, strict=True), (bias, own_bias)]
                distance = sum(1 - (a @ b) / (a.norm() * b.norm() + 1e-6) for a, b in rows)
                (slope,) = torch.autograd.grad(distance, points)
                points = (points.detach() - self.match_lr * slope).requires_grad_()
            self.invented[label] = points.detach()
        rng = stream(SEED, "term", number, "creff")
        self.second = self.draw(rng)
        optimizer = torch.optim.SGD(self.second.parameters(), lr=self.lr)
        samples = self.invented.reshape(-1, self.dim)
        labels = torch.arange(CLASSES).repeat_interleave(self.features)
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(len(samples)))
            for start in range(0, len(order), self.batch):
                part = order[start : start + self.batch]
                optimizer.zero_grad()
                functional.cross_entropy(self.second(samples[part]), labels[part]).backward()
                optimizer.step()

    def to_evaluate(self):
        model = copy.deepcopy(self.model)
        model[-1].load_state_dict(self.second.state_dict())
        return model.state_dict()


METHODS = {
    "fedproto:weight=2.0": PlainFedProto,
    "fedproto:weight=2.0,average=clients": PlainFedProtoByClient,
    "fpl:temperature=0.5": PlainFPL,
    "creff:features=4,match_steps=3,epochs=2,lr=0.05,batch_size=5": PlainCReFF,
}


def some_classes():
    """Clients of which some lack a class, and one has a single class."""
    data = clients(5)
    for number, dropped in enumerate([(), (0,), (1, 2), (), (2,)]):
        inputs, targets = data[f"client-{number}"]
        rows = torch.tensor([label not in dropped for label in targets.tolist()])
        data[f"client-{number}"] = (inputs[rows], targets[rows])
    return data


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("text", METHODS)
def test_a_run_equals_one_in_plain_torch(text, kind):
    data = clients(5, shape=(2, 6, 6)) if kind == "cnn" else some_classes()
    local = {"lr": LR, "batch_size": 1000, "steps": STEPS}
    algorithm = steelyard.Algorithm("fedavg", client=text)
    history = simulate(algorithm, data, net(kind), rounds=ROUNDS, local=local, seed=SEED)
    expected = METHODS[text](net(kind), data).run(ROUNDS)
    plain = simulate("fedavg", data, net(kind), rounds=ROUNDS, local=local, seed=SEED)
    for name, value in expected.items():
        torch.testing.assert_close(history.params[name], value, rtol=2e-4, atol=2e-5)
    # The method is visible: without it, the model is another one.
    assert any((history.params[name] - plain.params[name]).abs().max() > 1e-3 for name in expected)


def test_prototypes_equal_a_loop():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(40, 7, generator=g)
    targets = torch.randint(0, 4, (40,), generator=g)
    prototypes, counts = compute_prototypes(features, targets, 6)
    for label in range(6):
        rows = features[targets == label]
        assert counts[label] == len(rows)
        expected = rows.double().mean(dim=0).float() if len(rows) else torch.zeros(7)
        torch.testing.assert_close(prototypes[label], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_clusters_equal_the_clustering_equation(seed):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(int(rng.integers(1, 6)), 5))
    count = int(rng.integers(1, 25))
    points = centres[rng.integers(0, len(centres), count)] + 0.1 * rng.normal(size=(count, 5))
    found = cluster_points(points).tolist()
    expected = finch([torch.from_numpy(point) for point in points])
    assert len(set(zip(found, expected, strict=True))) == len(set(found)) == len(set(expected))


def test_two_domains_are_two_clusters():
    points = np.array([[1, 0.1], [1, 0.11], [0.9, 0.1], [0.1, 1], [0.12, 1.1], [0.1, 0.9]])
    labels = cluster_points(points)
    assert labels.tolist() in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_more_clusters_than_slots_become_one():
    angles = [0.0, 0.05, 1.0, 1.05, 2.0, 2.05, 3.0, 3.05]
    points = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])
    classifier = Classifier("", 1, 2, True)
    messages = {
        "prototypes": points[:, None],
        "counts": torch.ones(len(points), 1, dtype=torch.int64),
    }
    for slots in (1, 10):
        term = steelyard.fpl(max_clusters=slots)
        specs = term.server_tensors(classifier)
        tensors = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        context = steelyard.core.TensorContext(
            messages, tensors, classifier, np.random.default_rng(0)
        )
        term.update_tensors(context)
        expected = max(finch([point.double() for point in points])) + 1 if slots > 1 else 1
        assert tensors["cluster_counts"].tolist() == [expected]
        if slots == 1:
            torch.testing.assert_close(tensors["clusters"][0, 0], points.mean(dim=0))


def test_a_cold_temperature_stays_finite():
    term = steelyard.fpl(temperature=1e-4)
    classifier = Classifier("", 3, 4, True)
    tensors = {
        "clusters": torch.eye(4)[:3, None].repeat(1, 10, 1),
        "cluster_counts": torch.tensor([10, 10, 0]),
    }
    assert term.server_tensors(classifier)["clusters"].shape == tensors["clusters"].shape
    features = -torch.eye(4)[:3].requires_grad_()
    at = feature_context(steelyard.fpl(), {**tensors})
    loss = term.loss(features, features, torch.tensor([0, 1, 2]), at)
    assert loss.isfinite()


# What clients report and how they train beside a feature term.


def test_gradient_norms_are_those_of_the_loss_alone():
    options = {
        "rounds": 2,
        "metrics": ("grad_norm",),
        "local": {"lr": 0.1, "batch_size": 1000, "steps": 1},
    }
    plain = simulate("fedavg", model=net("dropout").eval(), **options)
    pulled = simulate(
        steelyard.Algorithm("fedavg", client="fedproto:weight=9.0"),
        model=net("dropout").eval(),
        **options,
    )
    # In round 1 there are no prototypes, so both start round 2 from the same model.
    for number in (0, 1):
        norms = [run.records[number]["reported"]["grad_norm"] for run in (plain, pulled)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert any(not torch.equal(plain.params[n], pulled.params[n]) for n in plain.params)


@pytest.mark.parametrize("kind", ["mlp", "batch_norm"])
def test_a_term_of_weight_zero_changes_nothing(kind):
    plain = simulate("fedavg", model=net(kind))
    zero = simulate(steelyard.Algorithm("fedavg", client="fedproto:weight=0.0"), model=net(kind))
    for name, value in plain.params.items():
        torch.testing.assert_close(zero.params[name], value, rtol=1e-4, atol=1e-6)


def test_creff_trains_clients_with_the_bits_of_plain_training():
    """It adds nothing to the loss, so the closed form is used; only the classifier is another."""
    plain = simulate("fedavg")
    creff = simulate(
        steelyard.Algorithm("fedavg", client="creff:features=2,match_steps=1,epochs=1")
    )
    assert torch.equal(plain.params["0.weight"], creff.params["0.weight"])
    assert not torch.equal(plain.params["2.weight"], creff.params["2.weight"])


def test_a_model_without_hidden_layers_and_one_without_bias_train():
    for model in (
        nn.Linear(5, 3),
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, False)),
    ):
        for text in ("fedproto", "fpl", "creff:features=2,match_steps=1,epochs=1"):
            history = simulate(steelyard.Algorithm("fedavg", client=text), model=model, rounds=2)
            assert all(value.isfinite().all() for value in history.params.values())


def test_a_model_in_float64_trains():
    for text in ("fedproto", "fpl", "creff:features=2,match_steps=1,epochs=1"):
        history = simulate(
            steelyard.Algorithm("fedavg", client=text), model=net().double(), rounds=2
        )
        assert history.params["0.weight"].dtype == torch.float64


# Which layer is the classifier.


class Named(nn.Module):
    """Defines its classifier first, and a layer that it does not use last."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)
        self.body = nn.Linear(5, 4)
        self.unused = nn.Linear(4, 3)

    def forward(self, x):
        return self.classifier(self.body(x).tanh())


def test_the_classifier_is_found_or_named():
    assert find_classifier(net()) == Classifier("2", 3, 8, True)
    assert find_classifier(Named()).name == "classifier"
    assert find_classifier(Named(), "unused").name == "unused"
    assert find_classifier(nn.Linear(5, 3)) == Classifier("", 3, 5, True)
    for model in (net(), net("cnn"), net("batch_norm"), Named(), nn.Linear(5, 3, bias=False)):
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        assert find_classifier_by_shape(shapes) == find_classifier(model)


def test_a_layer_of_a_sequential_has_a_number():
    for text in ("fedproto:classifier=2", 'fedproto:classifier="2"'):
        (term,) = steelyard.parse_terms(text)
        assert term == steelyard.fedproto(classifier="2")
    (first,) = steelyard.parse_terms("fedproto:classifier=0")
    assert first.classifier == "0"
    (nested,) = steelyard.parse_terms('fpl:classifier="0.1"')
    assert nested.classifier == "0.1"
    for text in ("fedproto:classifier=0.1", "fpl:classifier=true", "creff:classifier=none"):
        with pytest.raises(SteelyardError, match="in quotes"):
            steelyard.parse_terms(text)


def test_an_error_names_the_cure():
    with pytest.raises(SteelyardError, match="classifier=") as error:
        find_classifier(nn.Conv2d(1, 1, 1))
    assert "nn.Linear" in str(error.value)
    with pytest.raises(SteelyardError, match="'head'"):
        find_classifier(net(), "head")
    with pytest.raises(SteelyardError, match="'head'"):
        find_classifier_by_shape({"body.weight": (3, 4)}, "head")
    with pytest.raises(SteelyardError, match=r"'unused'.*classifier="):
        simulate(steelyard.Algorithm("fedavg", client="fedproto:classifier=unused"), model=Named())
    with FeatureRecorder(nn.Identity(), Classifier("", 1, 1, True)) as recorder:
        recorder._features = torch.zeros(2, 3, 4)
        with pytest.raises(SteelyardError, match=r"\[2, 3, 4\]"):
            recorder.take()


@pytest.mark.parametrize("layer", ["0", "2"])
def test_a_classifier_that_shares_its_weight_cannot_be_replaced(layer):
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    text = f"creff:epochs=1,match_steps=1,classifier={layer}"
    with pytest.raises(SteelyardError, match="shares its weight"):
        simulate(steelyard.Algorithm("fedavg", client=text), model=model)


def test_the_hook_is_removed_after_training():
    model = net()
    with FeatureRecorder(model, find_classifier(model)) as recorder:
        model(torch.zeros(2, 5))
        assert recorder.take().shape == (2, 8)
    assert not model[-1]._forward_pre_hooks


def test_terms_with_different_classifiers_are_refused():
    with pytest.raises(SteelyardError, match="'a' and 'b'"):
        steelyard.parse_terms("fedproto:classifier=a+fpl:classifier=b")


def test_targets_must_be_classes():
    data = {k: (inputs, targets.float()) for k, (inputs, targets) in clients().items()}
    with pytest.raises(SteelyardError, match="client=fedproto needs one class per sample"):
        simulate(
            steelyard.Algorithm("fedavg", client="fedproto"),
            data,
            nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
            loss="mse",
        )


@pytest.mark.parametrize(
    "text",
    [
        "fedproto:weight=-1",
        "fedproto:average=all",
        "fpl:temperature=0",
        "fpl:regression=none",
        "fpl:max_clusters=0",
        "creff:features=0",
        "creff:lr=0",
        "creff:batch_size=0",
    ],
)
def test_impossible_options_are_refused(text):
    option = text.split(":")[1].split("=")[0]
    with pytest.raises(SteelyardError, match=option):
        steelyard.parse_terms(text)


# Declarations.


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (torch.zeros(2, 3), None),
        (torch.zeros(3, 2), "[3, 2]"),
        (torch.zeros(2, 3, dtype=torch.float64), "float64"),
        (torch.full((2, 3), math.nan), "NaN"),
        (torch.full((2, 3), -math.inf), "NaN"),
    ],
)
def test_a_tensor_is_compared_with_its_declaration(tensor, problem):
    found = TensorSpec((2, 3)).find_problem(tensor)
    assert (found is None) if problem is None else (problem in found)


def test_counts_are_not_negative():
    spec = TensorSpec((2,), torch.int64)
    assert spec.find_problem(torch.tensor([0, 7])) is None
    assert "counts" in spec.find_problem(torch.tensor([0, -1]))
    assert "counts" in spec.find_problem(torch.tensor([0, 1 << 60]))
    with pytest.raises(SteelyardError, match="float16"):
        TensorSpec((2,), torch.float16)
