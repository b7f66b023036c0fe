"""Data sets and federations: what goes in, what is refused, what arranging keeps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, Federation

X = torch.arange(24, dtype=torch.float32).reshape(12, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])


class Squares(torch.utils.data.Dataset):
    def __init__(self, size=5):
        self.size, self.reads = size, 0

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        self.reads += 1
        return torch.full((3,), float(at)), at * at


def federation(index, train=None, test=None):
    lists = tuple(np.array(at, dtype=np.int64) for at in index)
    return Federation(train or Dataset(X, Y, 3, "toy"), tuple(range(len(lists))), lists, test)


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: t.numpy()], ids=["tensor", "array"])
def test_a_pair_becomes_a_data_set(wrap):
    data = Dataset.of((wrap(X.double()), wrap(Y.int())))
    assert data.inputs.dtype == torch.float32
    assert data.targets.dtype == torch.int64
    assert torch.equal(data.inputs, X)
    assert torch.equal(data.targets, Y)
    assert (data.classes, len(data)) == (3, 12)


def test_arrays_as_files_give_them():
    locked = np.arange(6, dtype=">f4").reshape(3, 2)[::-1]
    locked.flags.writeable = False
    assert Dataset.of((locked, np.zeros(3, dtype=np.int64))).inputs.tolist() == [
        [4, 5],
        [2, 3],
        [0, 1],
    ]


def test_a_torch_data_set_is_read_once():
    source = Squares()
    data = Dataset.of(source)
    assert source.reads == 5
    assert data.inputs.tolist() == [[float(at)] * 3 for at in range(5)]
    assert data.targets.tolist() == [0, 1, 4, 9, 16]
    assert Dataset.of(data) is data


def test_tokens_stay_integers_and_other_targets_have_no_classes():
    assert (
        Dataset.of((torch.ones(2, 4, dtype=torch.int32), torch.ones(2, 4))).inputs.dtype
        == torch.int64
    )
    assert Dataset.of((X, X)).classes is None
    assert Dataset.of((X, Y - 1)).classes is None


def test_take_by_positions_and_by_slice():
    data = Dataset(X, Y, 3, "toy")
    picked = data.take(np.array([5, 1, 1]))
    assert picked.inputs.tolist() == [[10, 11], [2, 3], [2, 3]]
    assert picked.targets.tolist() == [2, 1, 1]
    assert (picked.classes, picked.name) == (3, "toy")
    assert data.take(slice(3, 5)).inputs.data_ptr() == X[3:].data_ptr()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:-1]), r"\(12, 2\) and \(11,\): give one target per input"),
        ((X.clone().index_fill_(0, torch.tensor([3]), float("nan")), Y), "NaN"),
        ((X.clone().index_fill_(0, torch.tensor([3]), float("inf")), Y), "infinity"),
        ((X.byte(), Y), "uint8: use float32 for images"),
        ((np.array(["a"]), Y), "inputs: array of <U1"),
        ((X.tolist(), Y), "inputs: list"),
        (X, "data is a Tensor: use a Dataset, a pair"),
        (Squares(0), "empty"),
        (torch.utils.data.TensorDataset(X), "item 0 of the torch data set is a tuple: use pairs"),
    ],
)
def test_refused_data(data, message):
    with pytest.raises(SteelyardError, match=message):
        Dataset.of(data)


def test_a_sum_that_overflows_is_not_taken_for_infinity():
    assert len(Dataset(torch.full((4, 1), 3e38), Y[:4])) == 4


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(SteelyardError, match=r"0\.\.2: with classes=2 use 0\.\.1"):
        Dataset(X, Y, 2)


def test_a_federation_of_explicit_data_sets():
    fed = Federation.of(
        {"a": (X[:3], Y[:3]), 7: (X[:0], Y[:0]), "b": (X[4:5], Y[4:5])}, test=(X, Y)
    )
    assert fed.ids == ("a", 7, "b")
    assert fed.sizes.tolist() == [3, 0, 1]
    assert [at.tolist() for at in fed.index] == [[0, 1, 2], [], [3]]
    assert fed.train.inputs.tolist() == [[0, 1], [2, 3], [4, 5], [8, 9]]
    assert fed.label_counts().tolist() == [[1, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert fed.label_counts().dtype == np.int64


def test_classes_are_those_of_train_and_test():
    assert Federation.of({0: (X[:1], Y[:1])}, test=(X, Y)).classes == 3
    assert Federation.of({0: (X, X)}).classes is None
    with pytest.raises(SteelyardError, match="nothing to count"):
        Federation.of({0: (X, X)}).label_counts()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Federation.of({}), "0 clients have no samples"),
        (lambda: Federation.of({1: (X[:0], Y[:0])}), "1 clients have no samples"),
        (
            lambda: Federation.of({1: (X, Y), 2: (X[:, :1], Y)}),
            r"client 2 is float32 \[1\].*client 1 float32 \[2\]",
        ),
        (lambda: Federation.of({1: (X, Y)}, test=(X[:, :1], Y)), "use the same form"),
        (lambda: Federation.of({1: (X, Y)}, test=(X[:0], Y[:0])), "use test=None"),
        (lambda: federation([[0, 12]]), r"client 0 lies in 0\.\.12: train has positions 0\.\.11"),
        (lambda: federation([[-1]]), r"-1\.\.-1"),
        (lambda: federation([[], []]), "2 clients have no samples"),
        (
            lambda: Federation(Dataset(X, Y), (1, 1), (np.arange(2), np.arange(2))),
            "one list per distinct id",
        ),
        (lambda: Federation(Dataset(X, Y), (1,), (np.arange(2.0),)), r"float64 \(2,\): use int64"),
        (
            lambda: Federation.partitioned((X, X), None, "dirichlet:0.3", 2, 0),
            "partition=dirichlet needs int64 labels",
        ),
    ],
)
def test_refused_federations(make, message):
    with pytest.raises(SteelyardError, match=message):
        make()


def test_partitioned():
    fed = Federation.partitioned((X, Y), (X, Y), "iid", 5, seed=3)
    assert fed.ids == (0, 1, 2, 3, 4)
    assert sorted(np.concatenate(fed.index).tolist()) == list(range(12))
    assert len(fed.test) == 12


@pytest.mark.parametrize(
    "index", [[[7, 2], [], [11, 0, 5]], [[1, 2], [2, 1]]], ids=["disjoint", "shared"]
)
def test_arranging_keeps_every_client_as_it_was(index):
    fed = federation(index)
    arranged = fed.group_by_client()
    assert len(arranged.train) == sum(map(len, index))
    assert np.concatenate(arranged.index).tolist() == list(range(len(arranged.train)))
    for old, new in zip(fed.index, arranged.index, strict=True):
        assert torch.equal(fed.train.take(old).inputs, arranged.train.take(new).inputs)
        assert torch.equal(fed.train.take(old).targets, arranged.train.take(new).targets)
    assert arranged.fingerprint() == fed.fingerprint()


def test_arranging_never_grows_the_data():
    fed = federation([list(range(12)), [0]])
    assert fed.group_by_client() is fed


def test_the_fingerprint_sees_every_change_that_matters():
    test = Dataset(X, Y, 3)
    base = federation([[0, 1], [2, 3]], test=test)
    moved = X.clone()
    moved[3, 1] += 1
    others = [
        federation([[1, 0], [2, 3]], test=test),
        federation([[0, 1, 2], [3]], test=test),
        federation([[0, 1], [2, 3]]),
        federation([[0, 1], [2, 3]], train=Dataset(moved, Y, 3), test=test),
        federation([[0, 1], [2, 3]], train=Dataset(X, (Y + 1) % 3, 3), test=test),
        federation([[0, 1], [2, 3]], train=Dataset(X, Y, 4), test=test),
        federation([[0, 1], [2, 3]], test=Dataset(moved, Y, 3)),
        Federation(base.train, ("0", "1"), base.index, test),
    ]
    assert len({base.fingerprint(), *(other.fingerprint() for other in others)}) == 1 + len(others)
    assert federation([[0, 1], [2, 3]], test=test).fingerprint() == base.fingerprint()


def test_the_fingerprint_of_much_data_samples_all_columns_and_reads_little(monkeypatch):
    inputs = torch.zeros(60_000, 1, 14, 14)
    fed = Federation.of({0: (inputs, torch.zeros(60_000, dtype=torch.int64))})
    seen = set()
    before = fed.fingerprint()
    for column in range(14):
        fed.train.inputs[:, 0, 3, column] = 1.0
        seen.add(fed.fingerprint())
    assert len(seen | {before}) == 15
    hashed = []
    digest = SimpleNamespace(update=lambda data: hashed.append(len(data)), hexdigest=str)
    monkeypatch.setattr("steelyard.data._dataset.hashlib.sha256", lambda: digest)
    fed.fingerprint()
    targets = fed.train.targets.nbytes
    assert sum(hashed) - targets < 0.05 * fed.train.inputs.nbytes


def test_two_tensors_and_parts_of_them_are_taken_without_looking_at_items(monkeypatch):
    whole = torch.utils.data.TensorDataset(X, Y)
    part = torch.utils.data.Subset(torch.utils.data.Subset(whole, [5, 3, 1]), [2, 0])
    item = [Dataset.of(part), Dataset.of(whole)]
    monkeypatch.setattr(torch.utils.data.TensorDataset, "__getitem__", None)
    for data, before in zip((Dataset.of(part), Dataset.of(whole)), item, strict=True):
        assert torch.equal(data.inputs, before.inputs)
    assert Dataset.of(part).inputs.tolist() == [[2, 3], [10, 11]]
    assert Dataset.of(part).targets.tolist() == [1, 2]


def test_a_data_set_of_a_users_own_class_is_asked_for_its_items():
    class Doubled(torch.utils.data.TensorDataset):
        def __getitem__(self, at):
            x, y = super().__getitem__(at)
            return 2 * x, y

    assert torch.equal(Dataset.of(Doubled(X, Y)).inputs, 2 * X)
    assert torch.equal(Dataset.of(torch.utils.data.Subset(Doubled(X, Y), [1])).inputs, 2 * X[1:2])
