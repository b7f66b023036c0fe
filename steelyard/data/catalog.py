"""Where data sets live on the web, with the checksums their publishers or the usual libraries give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.core.errors import SteelyardError
from steelyard.data.archives import unpack
from steelyard.data.download import Progress, fetch


@dataclass(frozen=True)
class File:
    """A file to fetch.

    Attributes:
        url: where it is.
        path: where it goes, below the data directory.
        md5: its checksum; or
        sha256: a newer one.
        size: in bytes, if it is known.
        folder: what it is unpacked to, beside it; the archive is removed then.
    """

    url: str
    path: str
    md5: str | None = None
    sha256: str | None = None
    size: int | None = None
    folder: str | None = None


def _idx(home: str, name: str, files: Sequence[tuple[str, str, int]]) -> tuple[File, ...]:
    return tuple(File(f"{home}{file}.gz", f"{name}/{file}.gz", md5, None, size) for file, md5, size in files)


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "http://ufldl.stanford.edu/housenumbers/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"

HOMES: dict[str, tuple[File, ...]] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        [
            ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ],
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        [
            ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ],
    ),
    "cifar10": (
        File(
            f"{_TORONTO}cifar-10-python.tar.gz",
            "cifar10/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            size=170_498_071,
            folder="cifar-10-batches-py",
        ),
    ),
    "cifar100": (
        File(
            f"{_TORONTO}cifar-100-python.tar.gz",
            "cifar100/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            size=169_001_437,
            folder="cifar-100-python",
        ),
    ),
    "svhn": (
        File(
            f"{_STANFORD}train_32x32.mat", "svhn/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", size=182_040_794
        ),
        File(f"{_STANFORD}test_32x32.mat", "svhn/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", size=64_275_384),
    ),
    "usps": (
        File(f"{_LIBSVM}usps.bz2", "usps/usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        File(f"{_LIBSVM}usps.t.bz2", "usps/usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    "mnist-m": (
        File(  # pytorch-adapt's copy: the authors' own is behind a page of Google Drive
            "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            "mnist-m/mnist_m.tar.gz",
            md5="859df31c91afe82e80e5012ba928f279",
            folder="mnist_m",
        ),
    ),
    "tiny-imagenet": (
        File(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            size=248_100_043,
        ),
    ),
    "ag-news": (
        File(f"{_AG_NEWS}train.csv", "ag_news_csv/train.csv", "b1a00f826fdfbd249f79597b59e1dc12", size=29_470_338),
        File(f"{_AG_NEWS}test.csv", "ag_news_csv/test.csv", "d52ea96a97a2d943681189a97654912d", size=1_857_427),
    ),
    "sogou-news": (
        File(
            "https://s3.amazonaws.com/fast-ai-nlp/sogou_news_csv.tgz",
            "sogou_news_csv.tgz",
            sha256="6b77fc935561d339b82aa552d7e31ea59eff492a494920579b3ce70604efb5c2",
            size=384_269_937,
            folder="sogou_news_csv",
        ),
    ),
}
HOMES["digits-5"] = tuple(file for name in ("mnist", "mnist-m", "svhn", "usps") for file in HOMES[name])


def bring(name: str, directory: Path, watch: Callable[[File], Progress] | None = None) -> list[Path]:
    """Fetches the files of a data set into a directory, and unpacks them; those that are there are left alone.

    Args:
        name: a key of `HOMES`.
        directory: the data directory.
        watch: called with each file, for what is to be called as its bytes come in.
    """
    out = []
    for file in HOMES[name]:
        path = directory / file.path
        goal = path if file.folder is None else path.with_name(file.folder)
        if file.folder is None or not goal.is_dir():
            progress = None if watch is None else watch(file)
            fetch(file.url, path, md5=file.md5, sha256=file.sha256, size=file.size, progress=progress)
            if file.folder is not None:
                unpack(path, goal)
                path.unlink(missing_ok=True)
        out.append(goal)
    return out


def find_name(name: str) -> str:
    """The name, if it has a home."""
    if name not in HOMES:
        raise SteelyardError(f"{name!r} has no public home: known are {', '.join(sorted(HOMES))}")
    return name
