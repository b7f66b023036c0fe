"""The other image sets, on small files and, where they are, on the real ones."""

import sys
import tarfile

import numpy as np
import pytest
import torch
from scipy.io import loadmat

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import parse, to_text
from steelyard.data import SOURCES, Federation, load
from steelyard.data import _cifar as cifar
from steelyard.data import _images as images
from steelyard.data._formats import read_matlab
from steelyard.experiments import read_runs
from steelyard.experiments._reproduce import describe_subset
from steelyard.report._build import build_report
from steelyard.runs._directory import read_subset
from steelyard.sim._experiment import read_experiment
from tests.datasets import files

MEANS, DEVIATIONS = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


@pytest.fixture(autouse=True)
def _no_data_around(monkeypatch, tmp_path):
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "nowhere")


def pixels(data):
    """Inputs of scale=unit as bytes."""
    return (data.inputs * 255).round().to(torch.uint8).numpy()


@pytest.mark.parametrize(
    "write",
    [files.write_cifar100_python, files.write_cifar100_binary, files.write_cifar100_archive],
)
@pytest.mark.parametrize("folder", ["", "cifar100"])
def test_cifar100_has_its_fine_labels(tmp_path, monkeypatch, write, folder):
    monkeypatch.setattr(cifar, "BATCH", 4)
    made = write(tmp_path / folder)
    for part, name in zip(load("cifar100:scale=unit", tmp_path), made, strict=True):
        assert (pixels(part) == made[name][0].reshape(-1, 3, 32, 32)).all()
        assert part.targets.tolist() == made[name][1].tolist()
        assert (part.classes, part.name) == (100, "cifar100")


def test_an_archive_of_cifar100_without_its_files(tmp_path):
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz"):
        pass
    with pytest.raises(SteelyardError, match="has no cifar-100-python/train"):
        load("cifar100", tmp_path)


def test_a_subset_of_cifar100_as_montages(tmp_path):
    made = files.write_cifar100_subset(tmp_path)
    train, test = load("cifar100:scale=unit", tmp_path)
    for part, name in ((train, "train"), (test, "test")):
        assert (pixels(part) == made[name][0].reshape(-1, 3, 32, 32)).all()
        assert part.targets.tolist() == made[name][1].tolist()
        assert (part.classes, part.name) == (100, "cifar100")
    assert max(train.targets.tolist()) > 9
    assert train.subset == "subset: 8 of 50,000 training samples, 4 of 10,000 test samples"
    # The files of the authors come first.
    files.write_cifar100_python(tmp_path)
    assert len(load("cifar100", tmp_path)[0]) == 20


def test_a_label_beyond_the_classes_of_a_montage(tmp_path):
    files.write_cifar100_subset(tmp_path)
    index = tmp_path / "cifar100_subset" / "index.npz"
    labels = np.full(8, 100, dtype=np.uint8)
    np.savez_compressed(index, train_labels=labels, test_labels=labels[:4])
    with pytest.raises(SteelyardError, match=r"has label 100, not 0\.\.99"):
        load("cifar100", tmp_path)


def test_only_a_subset_is_marked():
    assert load("digits")[0].subset == ""


def test_a_subset_is_marked_in_every_result(tmp_path):
    files.write_cifar100_subset(tmp_path)
    options = {"rounds": 1, "clients": 2, "data_dir": tmp_path, "executor": "serial"}
    for rule in ("fedavg", "uniform"):
        steelyard.simulate(
            rule, "cifar100", "logistic", partition="iid", out=tmp_path / rule, **options
        )
    mark = "subset: 8 of 50,000 training samples, 4 of 10,000 test samples"
    assert read_subset(tmp_path / "fedavg") == mark
    _, notes = read_runs([tmp_path / "fedavg", tmp_path / "uniform"])
    note = f"cifar100, {mark}: not comparable with results on the whole set"
    assert notes == [note]
    assert note in build_report([tmp_path / "fedavg"]).notes

    # A partition that does not use all samples does not hide it.
    x_class = "x_class:classes=1,iid=1,samples=1"
    steelyard.simulate(
        "fedavg", "cifar100", "logistic", partition=x_class, out=tmp_path / "part", **options
    )
    config = read_experiment(None, ["data.name=cifar100", f"data.partition={x_class}"])
    assert describe_subset(config, tmp_path / "part") == mark


@pytest.mark.parametrize(
    ("scale", "mean", "deviation"),
    [("default", [0.5] * 3, [0.5] * 3), ("unit", [0] * 3, [1] * 3), ("half", [0.5] * 3, [0.5] * 3),
     ("standard", MEANS, DEVIATIONS)],
)  # fmt: skip
def test_scales(tmp_path, scale, mean, deviation):
    made = files.write_cifar_montage(tmp_path)
    wanted = made["test_batch"][0].reshape(-1, 3, 32, 32) / 255
    _, test = load(f"cifar10:scale={scale}", tmp_path)
    for channel in range(3):
        expected = (wanted[:, channel] - mean[channel]) / deviation[channel]
        np.testing.assert_allclose(test.inputs[:, channel], expected, atol=1e-6)


def test_digits_are_scaled_too():
    train, _ = load("digits:standard")
    assert abs(float(train.inputs.mean())) < 1e-3
    assert float(train.inputs.std()) == pytest.approx(1, abs=1e-3)
    assert load("digits:half")[0].inputs.min() == -1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar10:scal=unit", "did you mean 'scale'"),
        ("cifar10:scale=units", "scale='units': use one of 'default', 'unit', 'half', 'standard'"),
        ("cifar1", "did you mean 'cifar1"),
        (
            "digits-5:domains=[mnist,mnst]",
            "domains='mnst': use one of 'mnist', 'mnist-m', 'svhn', 'synth', 'usps'",
        ),
        (
            "digits-5:domains=mnist",
            r"domains='mnist': use a list of distinct domains, e\.g\. \[mnist,usps\]",
        ),
        ("digits-5:domains=[mnist,mnist]", "distinct"),
        ("digits-5:size=31", "size=31: use one of 28, 32"),
        ("digits-5:samples=0", "samples=0"),
        ("digits-5:scale=standard", "use one of 'default', 'unit', 'half'"),
    ],
)
def test_bad_options_get_the_usual_errors(text, message):
    with pytest.raises(SteelyardError, match=message):
        load(text)


IMAGES = [entry for entry in SOURCES if isinstance(entry.make(), images.Images)]


@pytest.mark.parametrize("entry", IMAGES, ids=lambda entry: entry.name)
def test_sources_have_a_text_form(entry):
    made = entry.make()
    assert to_text(made) == entry.name
    other = entry.make(scale="unit")
    assert parse(to_text(other), SOURCES) == other
    assert made != other


def test_a_montage_of_cifar10(tmp_path):
    made = files.write_cifar_montage(tmp_path)
    train, test = load("cifar10:unit", tmp_path)
    assert (
        pixels(train)
        == np.concatenate([made[name][0] for name in files.BATCHES[:5]]).reshape(-1, 3, 32, 32)
    ).all()
    assert (
        train.targets.tolist()
        == np.concatenate([made[name][1] for name in files.BATCHES[:5]]).tolist()
    )
    assert (pixels(test) == made["test_batch"][0].reshape(-1, 3, 32, 32)).all()
    (tmp_path / "cifar10" / "data_batch_3.webp").unlink()
    with pytest.raises(
        SteelyardError, match=r"has labels of data_batch_3\.webp, which is not beside it"
    ):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn(tmp_path, compressed):
    made = files.write_svhn(tmp_path / "svhn", compressed)
    train, test = load("svhn:unit", tmp_path)
    assert (pixels(train) == made["train"][0]).all()
    assert train.targets.tolist() == made["train"][1].tolist()
    assert 0 in train.targets
    assert 10 not in train.targets
    assert (pixels(test) == made["test"][0]).all()


def test_matlab_files_are_read_as_scipy_reads_them(tmp_path):
    files.write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    for name, ours in zip("Xy", read_matlab(path, "X", "y"), strict=True):
        assert (ours == loadmat(path)[name]).all()
    with pytest.raises(SteelyardError, match=r"no array 'z' .*\['X', 'y'\]"):
        read_matlab(path, "z")


@pytest.mark.parametrize("form", ["libsvm", "npz"])
def test_usps(tmp_path, form):
    if form == "npz":
        (wanted, labels), (test_wanted, _) = files.write_usps_npz(tmp_path / "usps")
    else:
        made = files.write_usps_libsvm(tmp_path)
        (wanted, labels), (test_wanted, _) = made.values()
    train, test = load("usps", tmp_path)
    assert np.abs(pixels(train)[:, 0].astype(int) - wanted).max() <= (form == "libsvm")
    assert train.targets.tolist() == labels.tolist()
    assert train.inputs.shape == (12, 1, 16, 16)
    assert np.abs(pixels(test)[:, 0].astype(int) - test_wanted).max() <= (form == "libsvm")


def test_half_of_usps(tmp_path):
    files.write_usps_libsvm(tmp_path)
    (tmp_path / "usps.t.bz2").unlink()
    with pytest.raises(SteelyardError, match=r"usps\.t\.bz2 is missing"):
        load("usps", tmp_path)


@pytest.mark.parametrize("folder", ["", "mnist-m"])
def test_mnist_m_as_its_authors_pack_it(tmp_path, folder):
    made = files.write_mnist_m(tmp_path / folder)
    for part, (wanted, labels) in zip(load("mnist-m:unit", tmp_path), made.values(), strict=True):
        assert (pixels(part) == wanted.transpose(0, 3, 1, 2)).all()
        assert part.targets.tolist() == labels.tolist()


def test_mnist_m_as_a_montage(tmp_path):
    made = files.write_mnist_m_montage(tmp_path)
    for part, (wanted, labels) in zip(load("mnist-m:unit", tmp_path), made.values(), strict=True):
        assert (pixels(part) == wanted).all()
        assert part.targets.tolist() == labels.tolist()


@pytest.mark.parametrize(
    "line",
    [
        "../../secret.png 3",
        "/etc/secret.png 3",
        "00000000.png 10",
        "00000000.png",
        "00000000.txt 1",
        "",
    ],
)
def test_mnist_m_with_a_bad_line(tmp_path, line):
    files.write_mnist_m(tmp_path)
    (tmp_path / "mnist_m" / "mnist_m_test_labels.txt").write_text(f"00000000.png 1\n{line}\n")
    with pytest.raises(
        SteelyardError, match=r"labels\.txt, line 2, is not the name of an image and a digit"
    ):
        load("mnist-m", tmp_path)


@pytest.mark.parametrize(
    "write", [files.write_tiny_folder, files.write_tiny_zip, files.write_tiny_tar]
)
def test_tiny_imagenet(tmp_path, write):
    write(tmp_path)
    train, test = load("tiny-imagenet:unit", tmp_path)
    assert train.inputs.shape == (6, 3, 64, 64)
    assert (train.classes, test.classes) == (3, 3)
    assert train.targets.tolist() == [0, 0, 1, 1, 2, 2]  # by class and name, n01 first
    wanted = [50, 150, 10, 110, 90, 190]
    assert np.abs(pixels(train)[:, :, 5, 5].astype(int) - np.array(wanted)[:, None]).max() <= 1
    assert test.targets.tolist() == [0, 1, 2]
    assert np.abs(pixels(test)[:, 0, 5, 5].astype(int) - [50, 0, 100]).max() <= 1


def test_tiny_imagenet_with_an_image_of_no_class(tmp_path):
    files.write_tiny_folder(tmp_path)
    (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\nval_1.JPEG\tn09\t"
    )
    with pytest.raises(SteelyardError, match=r"val_1\.JPEG is of class 'n09'"):
        load("tiny-imagenet", tmp_path)


def test_images_of_another_size_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    files.write_mnist_m(tmp_path)
    path = tmp_path / "mnist_m" / "mnist_m_train" / "00000003.png"
    path.write_bytes(files.packed(np.zeros((32, 33, 3), dtype=np.uint8), "PNG"))
    with pytest.raises(SteelyardError, match=r"00000003\.png is an image of 33x32, not 32x32"):
        load("mnist-m", tmp_path)
    path.write_bytes(b"\x89PNG" + bytes(2_000_000))
    with pytest.raises(SteelyardError, match="has 2000004 bytes, too many for a small image"):
        load("mnist-m", tmp_path)


def test_without_pillow_the_cure_is_named(tmp_path, monkeypatch):
    files.write_mnist_m(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SteelyardError, match=r'Pillow.*: pip install "steelyard\[data\]"'):
        load("mnist-m", tmp_path)


def test_fashion_mnist_from_debian(tmp_path, monkeypatch):
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    wanted, _ = files.write_mnist(tmp_path / "debian")
    with pytest.raises(
        SteelyardError, match="fetch it: steelyard data fetch fashion-mnist --dir DIR"
    ):
        load("fashion-mnist")
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "debian")
    assert (pixels(load("fashion-mnist")[0])[:, 0] == wanted).all()
    files.write_mnist(tmp_path / "mine" / "fashion-mnist", train=9)
    assert len(load("fashion-mnist", tmp_path / "mine")[0]) == 9
    with pytest.raises(SteelyardError, match="mnist is read from files"):
        load("mnist")


def write_domains(root):
    files.write_mnist(root / "mnist", train=30)
    files.write_mnist_m_montage(root)
    files.write_svhn(root / "svhn")
    files.write_fonts(root / "chars74k_fnt_digits")
    files.write_usps_npz(root / "usps")


@pytest.mark.parametrize("size", [28, 32])
def test_digits_5(tmp_path, size):
    write_domains(tmp_path)
    train, test = load(f"digits-5:size={size}", tmp_path)
    assert train.inputs.shape[1:] == (3, size, size)
    assert np.bincount(train.groups).tolist() == [30, 10, 12, 16, 12]
    assert np.bincount(test.groups).tolist() == [3, 4, 5, 4, 3]
    svhn = load("svhn", tmp_path)[0]
    assert train.targets[train.groups == 2].tolist() == svhn.targets.tolist()
    if size == 32:
        assert torch.equal(train.inputs[train.groups == 2], svhn.inputs)
    federation = Federation.partitioned(train, test, "by_group", 10, seed=0)
    for client, index in enumerate(federation.index):
        assert set(train.groups[index].tolist()) == {client % 5}


def test_grey_digits_become_coloured_and_keep_their_brightness(tmp_path):
    files.write_usps_npz(tmp_path / "usps")
    train, _ = load("digits-5:domains=[usps],scale=unit", tmp_path)
    assert torch.equal(train.inputs[:, 0], train.inputs[:, 2])
    plain = load("usps", tmp_path)[0].inputs
    np.testing.assert_allclose(
        train.inputs[:, 0].mean(dim=(1, 2)), plain[:, 0].mean(dim=(1, 2)), atol=0.01
    )


def test_some_samples_of_each_domain_evenly_spaced(tmp_path):
    write_domains(tmp_path)
    train, test = load("digits-5:domains=[synth,mnist],samples=4", tmp_path)
    assert train.group_names == test.group_names == ("synth", "mnist")
    assert train.groups.tolist() == [0] * 4 + [1] * 4
    whole = load("synth", tmp_path)[0].targets
    assert train.targets[:4].tolist() == whole[[0, 4, 8, 12]].tolist()
    assert len(test) == 4 + 3


def test_a_missing_domain_is_named_and_can_be_left_out(tmp_path):
    write_domains(tmp_path)
    (tmp_path / "svhn" / "train_32x32.mat").unlink()
    with pytest.raises(
        SteelyardError, match=r"domain 'svhn' is missing.*leave it out: digits-5:domains="
    ) as caught:
        load("digits-5", tmp_path)
    left = str(caught.value).split("leave it out: ")[1]
    assert left == "digits-5:domains=[mnist,mnist-m,synth,usps]"
    assert int(load(left, tmp_path)[0].groups.max()) == 3


def test_synth_has_no_home(tmp_path):
    with pytest.raises(SteelyardError, match="put it there"):
        load("synth", tmp_path)
    files.write_svhn(tmp_path, prefix="synth_")
    assert load("synth", tmp_path)[0].inputs.shape == (12, 3, 32, 32)


# The real files. README.md beside them says what they hold.


def test_the_real_cifar10():
    train, test = load(
        "cifar10:unit", files.real("cifar-10-batches-py", "cifar10", "cifar-10-batches-bin")
    )
    assert (train.inputs.shape, len(test)) == ((50_000, 3, 32, 32), 10_000)
    assert np.bincount(train.targets).tolist() == [5000] * 10
    assert np.bincount(test.targets).tolist() == [1000] * 10
    assert train.targets[:8].tolist() == [6, 9, 9, 4, 1, 1, 2, 7]
    np.testing.assert_allclose(train.inputs.mean(dim=(0, 2, 3)), MEANS, atol=1e-4)
    np.testing.assert_allclose(train.inputs.std(dim=(0, 2, 3)), DEVIATIONS, atol=1e-4)


def test_the_real_subset_of_cifar100():
    train, test = load("cifar100:unit", files.real("cifar100_subset/index.npz"))
    if len(train) == 50_000:
        pytest.skip("the whole of CIFAR-100 is there, too")
    assert (train.inputs.shape, test.inputs.shape) == ((20_000, 3, 32, 32), (5000, 3, 32, 32))
    assert np.bincount(train.targets).tolist() == [200] * 100
    assert np.bincount(test.targets).tolist() == [50] * 100
    assert train.subset.startswith("subset: 20,000 of 50,000 training samples")
    means = [0.5071, 0.4865, 0.4409]
    np.testing.assert_allclose(train.inputs.mean(dim=(0, 2, 3)), means, atol=5e-3)


def test_the_real_usps():
    train, test = load("usps", files.real("usps"))
    assert np.bincount(train.targets).tolist() == [
        1194,
        1005,
        731,
        658,
        652,
        556,
        664,
        645,
        542,
        644,
    ]
    assert np.bincount(test.targets).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert train.targets[:5].tolist() == [6, 5, 4, 7, 3]


def test_the_real_mnist_m():
    train, test = load("mnist-m:standard", files.real("mnist_m_subset/index.npz"))
    assert np.bincount(train.targets).tolist() == [500] * 10
    assert np.bincount(test.targets).tolist() == [100] * 10
    np.testing.assert_allclose(train.inputs.mean(dim=(0, 2, 3)), [0] * 3, atol=1e-3)


def test_the_real_tiny_imagenet():
    train, test = load("tiny-imagenet", files.real("tiny_imagenet_subset/tiny-imagenet-20.tar.xz"))
    assert train.inputs.shape == (2000, 3, 64, 64)
    assert np.bincount(train.targets).tolist() == [100] * 20
    assert np.bincount(test.targets).tolist() == [25] * 20
    assert train.classes == 20


def test_the_real_domains():
    directory = files.real("chars74k_fnt_digits")
    for name in ("mnist", "mnist_m_subset", "usps"):
        files.real(name)
    train, test = load("digits-5:domains=[mnist,mnist-m,synth,usps],samples=500", directory)
    assert np.bincount(train.groups).tolist() == [500] * 4
    assert np.bincount(test.groups).tolist() == [10_000, 1000, 2030, 2007]
    assert np.bincount(train.targets[train.groups == 2]).tolist() == [50] * 10
