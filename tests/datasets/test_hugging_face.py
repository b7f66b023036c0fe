"""Hugging Face data sets as data, whole and per client."""

import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, Federation, Vocabulary, encode
from steelyard.data import _hugging_face as hugging_face

LABELS = [0, 2, 1, 0, 2, 1]


def table(columns, **features):
    made = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        made = made.cast_column(name, feature)
    return made


def pictures(mode="RGB", count=6, size=(5, 4)):
    rng = np.random.default_rng(0)
    shape = (size[1], size[0]) + ((3,) if mode == "RGB" else ())
    return [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(count)]


def images(mode="RGB", name="img", label="label", **columns):
    names = datasets.ClassLabel(names=["a", "b", "c", "d"])
    return table(
        {name: pictures(mode), label: LABELS, **columns}, **{name: datasets.Image(), label: names}
    )


@pytest.mark.parametrize("name", ["image", "img", "pixel_values", "x"])
@pytest.mark.parametrize("label", ["label", "labels", "fine_label", "target", "y"])
def test_columns_are_found_by_name(name, label):
    data = Dataset.of(images(name=name, label=label))
    expected = np.stack([np.asarray(picture) for picture in pictures()]).transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(data.inputs, expected, atol=1e-7)
    assert data.inputs.dtype == torch.float32
    assert data.inputs.shape == (6, 3, 4, 5)
    assert data.targets.tolist() == LABELS
    assert data.classes == 4  # the feature knows of one that no row has


def test_columns_may_be_named():
    made = images(coarse=[1, 0, 1, 0, 1, 0], speaker=["z", "a", "a", "m", "z", "a"])
    data = Dataset.of(made, inputs="img", targets="coarse", groups="speaker")
    assert data.targets.tolist() == [1, 0, 1, 0, 1, 0]
    assert data.classes == 2
    assert data.groups.tolist() == [2, 0, 0, 1, 2, 0]
    fed = Federation.partitioned(data, None, "by_group", 3, seed=0)
    assert fed.sizes.tolist() == [3, 1, 2]


def test_greyscale_images_have_one_channel_and_become_rgb_among_others(monkeypatch):
    monkeypatch.setattr(hugging_face, "_ROWS", 2)
    assert Dataset.of(images("L")).inputs.shape == (6, 1, 4, 5)
    mixed = table(
        {"img": pictures("L", 3) + pictures("RGB", 3), "label": LABELS}, img=datasets.Image()
    )
    inputs = Dataset.of(mixed).inputs
    grey = (
        torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures("L", 3)])).float()
        / 255
    )
    assert torch.equal(inputs[:3], grey[:, None].expand(3, 3, 4, 5))
    assert not torch.equal(inputs[3:, 0], inputs[3:, 1])


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_numbers_in_any_format(form, monkeypatch):
    monkeypatch.setattr(hugging_face, "_ROWS", 4)
    values = np.arange(24.0).reshape(6, 2, 2)
    made = table(
        {"x": values.tolist(), "y": LABELS}, x=datasets.Array2D((2, 2), "float32")
    ).with_format(form)
    data = Dataset.of(made)
    assert torch.equal(data.inputs, torch.from_numpy(values).float())
    assert data.classes == 3
    tokens = Dataset.of(table({"x": [[1, 2]] * 6, "y": [0.5] * 6}).with_format(form))
    assert tokens.inputs.dtype == torch.int64
    assert (tokens.classes, tokens.targets.dtype) == (None, torch.float32)


def test_a_users_own_transform_is_obeyed():
    made = images().with_transform(
        lambda rows: {
            "pixel_values": [torch.full((2, 3), float(y)) for y in rows["label"]],
            "labels": rows["label"],
        }
    )
    data = Dataset.of(made)
    assert data.inputs[:, 0, 0].tolist() == LABELS
    turned = images().with_transform(
        lambda rows: {"img": [p.rotate(90, expand=1) for p in rows["img"]], "y": LABELS}
    )
    assert Dataset.of(turned).inputs.shape == (6, 3, 5, 4)
    raw = images().with_transform(
        lambda rows: {"x": [np.zeros((2, 2), np.uint8) for _ in rows["img"]], "y": LABELS}
    )
    with pytest.raises(SteelyardError, match="inputs are uint8"):
        Dataset.of(raw)


def test_columns_are_read_in_few_steps(monkeypatch):
    made = table({"x": [[float(at)] for at in range(3000)], "y": [at % 3 for at in range(3000)]})
    asked = []
    plain = datasets.Dataset.__getitem__
    monkeypatch.setattr(
        datasets.Dataset, "__getitem__", lambda self, key: asked.append(key) or plain(self, key)
    )
    assert Dataset.of(made).inputs[:, 0].tolist() == list(range(3000))
    assert len(asked) == 6


def test_text_goes_through_a_vocabulary():
    lines = ["a b", "b", "c c c", "a", "b", "b"]
    made = table({"text": lines, "label": LABELS})
    vocabulary = Vocabulary.of(lines)
    data = Dataset.of(made, vocabulary=vocabulary, length=2)
    assert torch.equal(data.inputs, encode(lines, vocabulary, 2))
    with pytest.raises(
        SteelyardError, match=r"column 'text' .*: give vocabulary=steelyard\.data\.Vocabulary"
    ):
        Dataset.of(made)


def test_one_data_set_per_client_and_a_pair():
    made = images()
    fed = Federation.of({"a": made.select([0, 1]), "b": made.select([2, 3, 4])}, test=made)
    assert fed.sizes.tolist() == [2, 3]
    assert fed.classes == 4
    history = steelyard.simulate(
        data=(made, made), model="logistic", partition="iid", clients=2, rounds=1
    )
    assert len(history) == 1


def pictured(column):
    return table({"img": column, "y": LABELS}, img=datasets.Image())


def numbers(column, y=LABELS):
    return table({"x": column, "y": y})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: datasets.DatasetDict({"train": images(), "test": images()}),
            r"of 'train', 'test'.*\['train'\]",
        ),
        (lambda: datasets.DatasetDict({}), "DatasetDict of nothing"),
        (lambda: images().to_iterable_dataset(), "read as a stream: load it with streaming=False"),
        (lambda: images().select([]), "is empty"),
        (
            lambda: images(name="photo"),
            r"no column of image, img, .* in photo, label: name .*inputs='photo'",
        ),
        (
            lambda: images(label="kind"),
            r"no column of label, labels, .* in img, kind: name .*targets='img'",
        ),
        (lambda: pictured(pictures("RGB", 3) + pictures("RGB", 3, (2, 2))), "images of sizes"),
        (lambda: pictured([*pictures("RGB", 5), None]), "'img' .*row 5"),
        (lambda: pictured([None, *pictures("RGB", 5)]), "'img' .*row 0"),
        (lambda: pictured([Image.new("I;16", (2, 2))] * 6), "mode I;16"),
        (lambda: numbers([[1.0], [1.0, 2.0]] * 3), "'x' has values of shapes"),
        (
            lambda: numbers([[0]] * 6).cast_column("x", datasets.List(datasets.Value("uint8"))),
            "'x' is uint8",
        ),
        (
            lambda: numbers([[1.0]] * 6, list("abcabc")),
            r"'y' .*text: number it, data\.class_encode_column",
        ),
        (lambda: numbers([[1.0]] * 6, [0, 1, None, 1, 0, 1]), "'y' has no number in row 2"),
        (lambda: numbers([[1.0], [None]] * 3), "NaN or infinity"),
    ],
)
def test_refused(make, message):
    with pytest.raises(SteelyardError, match=message):
        Dataset.of(make())


def test_images_of_other_sizes_further_on(monkeypatch):
    monkeypatch.setattr(hugging_face, "_ROWS", 3)
    other = table(
        {"img": pictures("RGB", 3) + pictures("RGB", 3, (2, 2)), "y": LABELS}, img=datasets.Image()
    )
    with pytest.raises(SteelyardError, match="'img' has values of shapes"):
        Dataset.of(other)


def test_refused_names():
    with pytest.raises(
        SteelyardError, match="groups='speaker': there is no such column in img, label"
    ):
        Dataset.of(images(), groups="speaker")
    with pytest.raises(SteelyardError, match="groups='img': a value has shape"):
        Dataset.of(images(), groups="img")
    with pytest.raises(
        SteelyardError, match=r"data is a tuple: .* for Hugging Face data sets only"
    ):
        Dataset.of((torch.ones(2, 1), torch.ones(2)), inputs="img")


def test_their_library_is_never_imported():
    script = (
        "import sys, steelyard, torch; steelyard.Dataset.of((torch.ones(2, 1), torch.ones(2))); "
        "sys.exit('datasets' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
