"""Augmented batches, against a loop over images, and as part of whole runs."""

import itertools

import numpy as np
import pytest
import torch

from steelyard.client._augment import CropFlip, parse_augmentation
from steelyard.client._local import LocalTraining
from steelyard.core._errors import SteelyardError
from steelyard.sim._experiment import Experiment
from tests.sim.runs import clients, net, same, simulate

IMAGES = (2, 6, 6)
CROPPED = {"lr": 0.05, "batch_size": 8, "momentum": 0.9, "augment": "crop_flip:padding=2"}


def one_by_one(images, drawn, padding, background):
    """What the authors do, an image at a time: pad, cut out, mirror."""
    out = []
    for image, (top, left, mirrored) in zip(images, drawn.tolist(), strict=True):
        channels, height, width = image.shape
        padded = (
            background[:, None, None]
            .expand(channels, height + 2 * padding, width + 2 * padding)
            .clone()
        )
        padded[:, padding : padding + height, padding : padding + width] = image
        crop = padded[:, top : top + height, left : left + width]
        out.append(torch.flip(crop, [2]) if mirrored else crop)
    return torch.stack(out)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_batch_is_what_a_loop_over_images_makes_of_it(padding, channels, layout):
    rng = np.random.default_rng(padding)
    images = torch.from_numpy(rng.standard_normal((40, channels, 7, 5), dtype=np.float32))
    images = images.contiguous(memory_format=layout)
    before = images.clone()
    change = CropFlip(padding=padding)
    drawn, background = torch.from_numpy(change.draw(40, rng)), torch.arange(channels) - 9.0
    changed = change(images, drawn, background)
    assert torch.equal(changed, one_by_one(images, drawn, padding, background))
    assert changed.is_contiguous(memory_format=layout)
    assert torch.equal(images, before)


def test_every_crop_is_as_likely_and_half_of_the_images_are_mirrored():
    drawn = CropFlip(padding=2).draw(50_000, np.random.default_rng(0))
    assert drawn.shape == (50_000, 3)
    seen = np.unique(drawn[:, :2], axis=0, return_counts=True)
    assert seen[0].tolist() == [list(place) for place in itertools.product(range(5), range(5))]
    assert np.abs(seen[1] / 2000 - 1).max() < 0.1
    assert abs(drawn[:, 2].mean() - 0.5) < 0.01
    assert abs(np.corrcoef(drawn.T)[np.triu_indices(3, 1)]).max() < 0.02


@pytest.mark.parametrize("probability", [0, 1])
def test_mirroring_can_be_switched(probability):
    assert set(CropFlip(flip=probability).draw(1000, np.random.default_rng(0))[:, 2]) == {
        probability
    }


def test_outside_an_image_is_black_however_pixels_were_normalised():
    pixels = torch.randint(
        0, 256, (30, 3, 8, 8), generator=torch.Generator().manual_seed(0)
    ).float()
    pixels[4, :, 3, 3] = 0
    mean, deviation = (
        torch.tensor([0.49, 0.48, 0.45])[:, None, None],
        torch.tensor([0.2, 0.3, 0.4])[:, None, None],
    )
    black = (torch.zeros(3, 1, 1) - mean) / deviation
    assert torch.equal(CropFlip().background((pixels / 255 - mean) / deviation), black[:, 0, 0])
    assert CropFlip(fill=0.5).background(pixels).tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "wrong", ["crop_flip:padding=-1", "crop_flip:flip=2", "crop_flip:fill=red", "crop", 3]
)
def test_bad_options_are_named(wrong):
    with pytest.raises(
        SteelyardError,
        match=r"padding=-1|flip=2|fill='red'|did you mean 'crop_flip'|augment=3 is a int",
    ):
        LocalTraining(augment=wrong)


@pytest.mark.parametrize("nothing", [None, "none"])
def test_none_is_none(nothing):
    assert parse_augmentation(nothing) is None
    assert Experiment.from_dict({"local": {"augment": nothing}}, "test").local.augment in (
        None,
        "none",
    )


def test_only_images_are_augmented():
    with pytest.raises(SteelyardError, match=r"augment=crop_flip: a sample is float32 \[5\]"):
        simulate(local=CROPPED)
    tokens = torch.zeros(2, 1, 9, 9, dtype=torch.int64)
    with pytest.raises(SteelyardError, match=r"a sample is int64 \[1, 9, 9\]"):
        CropFlip().check(tokens)
    with pytest.raises(SteelyardError, match="padding=6, but images are 6x6: use less"):
        simulate(
            data=clients(shape=IMAGES),
            model=net("cnn"),
            local=CROPPED | {"augment": "crop_flip:padding=6"},
        )


def run(model="cnn", **options):
    return simulate(
        data=clients(shape=IMAGES),
        test=clients(1, seed=9, shape=IMAGES)["client-0"],
        model=net(model),
        **options,
    )


def test_runs_do_not_depend_on_the_executor_and_resume_bit_for_bit(tmp_path):
    options = {"local": CROPPED, "rounds": 4, "participation": {"share": 0.5}}
    whole = run(**options)
    assert same(whole, run(**options, executor="process", workers=2))
    run(**{**options, "rounds": 2}, out=tmp_path / "run")
    assert same(whole, run(**options, out=tmp_path / "run", resume=True))
    assert not same(whole, run(**{**options, "local": CROPPED | {"augment": None}}))


def test_a_run_is_not_resumed_under_another_augmentation(tmp_path):
    run(local=CROPPED, rounds=1, out=tmp_path / "run")
    with pytest.raises(SteelyardError, match="another one"):
        run(local=CROPPED | {"augment": None}, rounds=2, out=tmp_path / "run", resume=True)


def test_without_augmentation_a_run_is_described_as_ever(tmp_path):
    """Or checkpoints from before there was any could not be resumed."""
    run(local=CROPPED | {"augment": None}, rounds=1, out=tmp_path / "run")
    assert "augment" not in (tmp_path / "run" / "config.json").read_text()


def test_evaluation_is_not_augmented():
    """Nothing is learned at so small a rate, and crops change what the network sees: the accuracy stays."""
    options = {"rounds": 1, "metrics": ["loss_before", "loss"], "evaluate_clients": 1}
    tiny = {"lr": 1e-30, "batch_size": 8}
    plain, cropped = (
        run(local=tiny | {"augment": text}, **options) for text in (None, "crop_flip:padding=2")
    )
    assert same(plain, cropped)


def test_dense_networks_train_one_at_a_time_on_crops():
    dense = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(72, 3))
    history = simulate(data=clients(shape=IMAGES), model=dense, local=CROPPED, rounds=2)
    stacked = simulate(
        data=clients(shape=IMAGES), model=dense, local=CROPPED | {"augment": None}, rounds=2
    )
    still = CROPPED | {"augment": "crop_flip:padding=0,flip=0"}
    assert not same(history, stacked)
    left_alone = simulate(data=clients(shape=IMAGES), model=dense, local=still, rounds=2)
    for name, value in stacked.params.items():
        torch.testing.assert_close(left_alone.params[name], value, rtol=1e-4, atol=1e-5)
