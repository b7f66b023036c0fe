"""Archives are unpacked whole, inside their target, or not at all."""

import hashlib
import os
import stat
import tarfile
import zipfile

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.data import SOURCES
from steelyard.data import _download as download
from steelyard.data import _images as images
from steelyard.data._archives import unpack
from steelyard.data._download import DOWNLOADS, File, fetch_dataset
from tests.datasets.files import add
from tests.datasets.server import serving

GOOD = {"set/a.txt": b"first", "set/deep/b.txt": b"second"}


def tarred(path, *more, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in GOOD.items():
            add(archive, name, content)
        for name, content, fields in more:
            add(archive, name, content, **fields)
    return path


def zipped(path, *more):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in GOOD.items():
            archive.writestr(name, content)
        for info, content in more:
            archive.writestr(info, content)
    return path


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tgz", "set.tar.xz", "set.tar", "set.zip"])
def test_an_archive(tmp_path, name):
    kind = {"set.tar.xz": "w:xz", "set.tar": "w"}.get(name, "w:gz")
    archive = (
        zipped(tmp_path / name) if name.endswith("zip") else tarred(tmp_path / name, mode=kind)
    )
    unpack(archive, tmp_path / "out" / "set")
    assert everything(tmp_path / "out") == ["set", "set/a.txt", "set/deep", "set/deep/b.txt"]
    assert (tmp_path / "out" / "set" / "deep" / "b.txt").read_bytes() == b"second"
    unpack(archive, tmp_path / "out" / "set")  # it is there: nothing is lost
    assert everything(tmp_path / "out") == ["set", "set/a.txt", "set/deep", "set/deep/b.txt"]


def link():
    info = zipfile.ZipInfo("set/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


OUT = "leads out of its folder"
LINK = "a link or a device"
HOSTILE = {
    "tar-up": (lambda path: tarred(path, ("set/../../evil", b"x", {})), OUT),
    "tar-absolute": (lambda path: tarred(path, (f"{path.parent}/evil", b"x", {})), OUT),
    "tar-backslash": (lambda path: tarred(path, ("set\\..\\evil", b"x", {})), OUT),
    "tar-drive": (lambda path: tarred(path, ("C:/evil", b"x", {})), OUT),
    "tar-symlink": (
        lambda path: tarred(path, ("set/l", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc"})),
        LINK,
    ),
    "tar-hardlink": (
        lambda path: tarred(path, ("set/l", b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/x"})),
        LINK,
    ),
    "tar-device": (lambda path: tarred(path, ("set/l", b"", {"type": tarfile.CHRTYPE})), LINK),
    "tar-fifo": (lambda path: tarred(path, ("set/l", b"", {"type": tarfile.FIFOTYPE})), LINK),
    "tar-bomb": (
        lambda path: tarred(path, ("set/zeros", bytes(2_000_000), {})),
        "more than 1,000,000 bytes",
    ),
    "tar-header-bomb": (
        lambda path: tarred(path, ("set/x", b"x", {"pax_headers": {"comment": "0" * 2_000_000}})),
        "more than 1,000,000 bytes",
    ),
    "tar-twice": (lambda path: tarred(path, ("set/a.txt", b"other", {})), "complete archive"),
    "zip-up": (lambda path: zipped(path, ("set/../../evil", b"x")), OUT),
    "zip-absolute": (lambda path: zipped(path, (f"{path.parent}/evil", b"x")), OUT),
    "zip-symlink": (lambda path: zipped(path, (link(), b"/etc/passwd")), LINK),
    "zip-bomb": (
        lambda path: zipped(path, ("set/zeros", bytes(2_000_000))),
        "more than 1,000,000 bytes",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_leaves_nothing(tmp_path, name):
    make, message = HOSTILE[name]
    archive = make(tmp_path / ("bad.zip" if name.startswith("zip") else "bad.tar.gz"))
    with pytest.raises(SteelyardError, match=message):
        unpack(archive, tmp_path / "out" / "set", limit=1_000_000)
    assert everything(tmp_path) == [archive.name, "out"]


def test_a_sparse_file_counts_with_all_its_zeros(tmp_path):
    sparse = b"set/zeros".ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"00000000000\0" * 2
    sparse = bytearray(sparse + b" " * 8 + b"S" + bytes(100) + b"ustar  \0" + bytes(512))[:512]
    sparse[483:495] = b"77777777777\0"  # its real size: 8 GB
    sparse[148:156] = f"{sum(sparse):06o}\0 ".encode()
    (tmp_path / "bad.tar").write_bytes(bytes(sparse) + bytes(1024))
    with pytest.raises(SteelyardError, match="more than 1,000,000 bytes"):
        unpack(tmp_path / "bad.tar", tmp_path / "out" / "set", limit=1_000_000)


@pytest.mark.parametrize("cut", [0, 10, 100, -20])
@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_a_truncated_archive_leaves_nothing(tmp_path, name, cut):
    archive = (zipped if name.endswith("zip") else tarred)(tmp_path / name)
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(SteelyardError, match=r"complete archive|no.* folder"):
        unpack(archive, tmp_path / "out" / "set")
    assert everything(tmp_path) == ["out", name]


def test_another_archive(tmp_path):
    with pytest.raises(SteelyardError, match="folder 'other'"):
        unpack(tarred(tmp_path / "set.tar.gz"), tmp_path / "out" / "other")
    with pytest.raises(SteelyardError, match=r"set\.rar .*use \.bz2, \.gz"):
        unpack(tmp_path / "set.rar", tmp_path / "out" / "set")


def test_a_data_set_is_brought_unpacked_and_left_alone_the_next_time(tmp_path, monkeypatch):
    content = tarred(tmp_path / "made.tar.gz").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with serving({"/set.tar.gz": content}) as server:
        file = File(
            f"{server.url}/set.tar.gz",
            "toy/set.tar.gz",
            sha256=digest,
            size=len(content),
            folder="set",
        )
        monkeypatch.setitem(DOWNLOADS, "toy", (file,))
        seen = []
        for _ in range(2):
            made = fetch_dataset(
                "toy", tmp_path / "data", lambda file: lambda *at: seen.append((file.path, at))
            )
            assert made == [tmp_path / "data" / "toy" / "set"]
    assert len(server.asked) == 1
    assert seen[-1] == ("toy/set.tar.gz", (len(content), len(content)))
    assert os.listdir(tmp_path / "data" / "toy") == ["set"]
    assert (made[0] / "a.txt").read_bytes() == b"first"


def test_homes_are_whole():
    for name, found in DOWNLOADS.items():
        for file in found:
            assert file.url.startswith(("http://", "https://"))
            assert len(file.md5 or "") == 32 or len(file.sha256 or "") == 64, name
            assert not file.path.startswith("/")
    named = {entry.name for entry in SOURCES if isinstance(entry.make(), images.Images)}
    assert named - set(DOWNLOADS) == {"digits", "synth"}


def test_a_data_set_lists_its_files_in_its_own_class():
    """Defining a source is all it takes to fetch it; a subclass does not inherit the files."""
    file = File("https://example.org/a.gz", "toy/a.gz", md5="0" * 32)
    try:

        class Toy(images.MNIST):
            name = "toy-with-files"
            downloads = (file,)

        class Silent(Toy):
            name = "toy-without-files"

        assert DOWNLOADS["toy-with-files"] == (file,)
        assert "toy-without-files" not in DOWNLOADS
        assert download.check_fetchable("toy-with-files") == "toy-with-files"
        with pytest.raises(SteelyardError, match="toy-without-files"):
            download.check_fetchable("toy-without-files")
    finally:
        DOWNLOADS.pop("toy-with-files", None)
