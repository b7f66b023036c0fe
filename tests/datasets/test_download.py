"""Downloads, against a server on this machine."""

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.data import _download as download
from steelyard.data._download import fetch
from tests.datasets.server import serving
from tests.waiting import wait_until

CONTENT = np.random.default_rng(0).bytes(700_001)
SHA = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
FILES = {"/data.bin": CONTENT}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "in" / "data.bin"


def part_of(path):
    return path.with_name("data.bin.part")


def leave_part(path, content):
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(content)


@pytest.mark.parametrize("check", [{"sha256": SHA}, {"md5": MD5.upper()}])
@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_whole_file(path, check, size):
    seen = []
    with serving(FILES) as server:
        assert (
            fetch(
                f"{server.url}/data.bin",
                path,
                **check,
                size=size,
                progress=lambda *at: seen.append(at),
            )
            == path
        )
        assert path.read_bytes() == CONTENT
        assert fetch(f"{server.url}/data.bin", path, **check) == path
    assert server.asked == [("/data.bin", None)]  # the second time, it is there
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 1
    assert os.listdir(path.parent) == ["data.bin"]


def test_half_a_file_is_resumed(path):
    leave_part(path, CONTENT[:300_000])
    with serving(FILES) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert server.asked == [("/data.bin", "bytes=300000-")]
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["data.bin"]


def test_a_server_without_ranges_begins_anew(path):
    leave_part(path, CONTENT[:300_000])
    with serving(FILES, ranges=False) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert path.read_bytes() == CONTENT
    assert server.asked == [("/data.bin", "bytes=300000-")]


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_part_that_is_whole_needs_no_server(path, size):
    leave_part(path, CONTENT)
    with serving({}) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA, size=size)
    assert server.asked == []
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("size", "asked"), [(None, ["bytes=700002-", None]), (len(CONTENT), [None])]
)
def test_a_part_that_is_too_long_is_dropped(path, size, asked):
    leave_part(path, CONTENT + b"x")
    with serving(FILES) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA, size=size)
    assert [header for _, header in server.asked] == asked
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"", b"another file's beginning"])
def test_a_wrong_checksum_removes_what_came(path, part):
    leave_part(path, part)
    with (
        serving({"/data.bin": CONTENT[::-1]}) as server,
        pytest.raises(
            SteelyardError, match=f"another sha256 than {SHA} and was removed: try again"
        ),
    ):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert os.listdir(path.parent) == []


def test_a_damaged_file_is_fetched_again_and_kept_until_then(path):
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    with serving({}) as server, pytest.raises(SteelyardError, match="404"):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert path.read_bytes() == b"damaged"
    with serving(FILES) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert path.read_bytes() == CONTENT


def test_a_body_cut_short_is_kept_and_resumed(path):
    with (
        serving(FILES, cut=400_000) as server,
        pytest.raises(
            SteelyardError, match=r"the connection ended at 400000 of 700001 bytes: try again"
        ),
    ):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert part_of(path).stat().st_size == 400_000
    assert not path.exists()
    with serving(FILES) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert server.asked == [("/data.bin", "bytes=400000-")]


def test_more_than_there_should_be_is_not_received(path):
    with (
        serving(FILES) as server,
        pytest.raises(SteelyardError, match="700001 bytes, not 1000: it is another"),
    ):
        fetch(f"{server.url}/data.bin", path, sha256=SHA, size=1000)
    assert os.listdir(path.parent) == []


def test_a_body_of_unknown_length(path, monkeypatch):
    seen = []
    with serving(FILES, length=False) as server:
        with pytest.raises(SteelyardError, match="more than 500000 bytes: it is another file"):
            fetch(f"{server.url}/data.bin", path, sha256=SHA, size=500_000)
        assert part_of(path).stat().st_size <= 500_000
        part_of(path).unlink()
        with pytest.raises(SteelyardError, match="the connection ended at 700001 of 800000 bytes"):
            fetch(f"{server.url}/data.bin", path, sha256=SHA, size=800_000)
        part_of(path).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(download, "LIMIT", 600_000)
            with pytest.raises(SteelyardError, match="more than 600000 bytes"):
                fetch(f"{server.url}/data.bin", path, sha256=SHA)
        part_of(path).unlink()
        fetch(f"{server.url}/data.bin", path, sha256=SHA, progress=lambda *at: seen.append(at))
    assert seen[-1] == (len(CONTENT), None)
    assert path.read_bytes() == CONTENT


def test_another_part_than_the_one_asked_for(path):
    leave_part(path, CONTENT[:300_000])
    with (
        serving(FILES, shift=1) as server,
        pytest.raises(SteelyardError, match="server did not send the part"),
    ):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert part_of(path).read_bytes() == CONTENT[:300_000]


def test_errors_of_the_server_and_of_the_line(path):
    with serving({}) as server, pytest.raises(SteelyardError, match="404 Not Found"):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    with pytest.raises(SteelyardError, match=r"the connection failed \(Connection refused\)"):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)  # it is gone
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/data.bin"
        with pytest.raises(SteelyardError, match=r"no answer for 2 s"):
            fetch(url, path, sha256=SHA, timeout=2)
    with (
        serving(FILES, step=100_000, wait=600) as server,
        pytest.raises(SteelyardError, match=r"no answer for 2 s after \d+ bytes"),
    ):
        fetch(f"{server.url}/data.bin", path, sha256=SHA, timeout=2)
    assert part_of(path).exists()


def test_redirects_stay_on_the_web(path, tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT)
    moved = {
        "/file": f"file://{tmp_path}/secret",
        "/ftp": "ftp://127.0.0.1/x",
        "/good": "/data.bin",
    }
    with serving(FILES, moved=moved) as server:
        for place in ("file", "ftp"):
            with pytest.raises(SteelyardError, match=r"302|unknown url type"):
                fetch(f"{server.url}/{place}", path, sha256=SHA)
            assert not path.exists()
        fetch(f"{server.url}/good", path, sha256=SHA)


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data.bin", "http:///x", "http://[1/x"]
)
def test_only_http(path, url):
    with pytest.raises(SteelyardError, match=r"only http and https|connection failed"):
        fetch(url, path, sha256=SHA)


@pytest.mark.parametrize("check", [{}, {"sha256": SHA, "md5": MD5}])
def test_one_checksum_is_needed(path, check):
    with pytest.raises(SteelyardError, match="give one checksum"):
        fetch("http://127.0.0.1/x", path, **check)


def test_a_full_disk(path, monkeypatch):
    def full(out, data, target):
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SteelyardError(f"{target}: cannot be written ({error.strerror})") from error

    monkeypatch.setattr(download, "write", full)
    with serving(FILES) as server, pytest.raises(SteelyardError, match="No space left on device"):
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert not path.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_what_is_written_to_a_full_disk():
    with (
        open("/dev/full", "wb", buffering=0) as out,
        pytest.raises(SteelyardError, match=r"x: .*\(No space left on"),
    ):
        download.write(out, b"data", "x")


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SteelyardError, match="cannot be written"):
        fetch("http://127.0.0.1:9/x", tmp_path / "file" / "data.bin", sha256=SHA)
    (tmp_path / "data.bin.part").symlink_to(tmp_path / "elsewhere")
    with serving(FILES) as server, pytest.raises(SteelyardError, match="cannot be written"):
        fetch(f"{server.url}/data.bin", tmp_path / "data.bin", sha256=SHA)
    assert not (tmp_path / "elsewhere").exists()


def test_an_interrupt_keeps_the_part(path):
    def interrupt(done, total):
        if done > 300_000:
            raise KeyboardInterrupt

    with serving(FILES) as server:
        with pytest.raises(KeyboardInterrupt):
            fetch(f"{server.url}/data.bin", path, sha256=SHA, progress=interrupt)
        kept = part_of(path).read_bytes()
        assert len(kept) > 300_000
        assert kept == CONTENT[: len(kept)]
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert server.asked[-1] == ("/data.bin", f"bytes={len(kept)}-")
    assert path.read_bytes() == CONTENT


SCRIPT = "import sys; from steelyard.data._download import fetch; fetch(sys.argv[1], sys.argv[2], sha256=sys.argv[3])"


def has_part(path, size):
    return part_of(path).exists() and part_of(path).stat().st_size >= size


def test_a_kill_midway_then_resume(path):
    with serving(FILES, step=300_000, wait=60) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, f"{server.url}/data.bin", path, SHA]
        )
        try:
            wait_until(
                lambda: child.poll() is not None or has_part(path, 262_144), "a part has come in"
            )
            assert child.poll() is None
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    size = part_of(path).stat().st_size
    assert 0 < size < len(CONTENT)
    with serving(FILES) as server:
        fetch(f"{server.url}/data.bin", path, sha256=SHA)
    assert server.asked == [("/data.bin", f"bytes={size}-")]
    assert path.read_bytes() == CONTENT


def test_several_at_once_fetch_it_once(path):
    errors = []

    def one(url):
        try:
            fetch(url, path, sha256=SHA)
        except BaseException as error:
            errors.append(error)

    with serving(
        FILES, step=200_000, wait=0.02
    ) as server:  # a lock holds between threads as between processes
        threads = [threading.Thread(target=one, args=(f"{server.url}/data.bin",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert server.asked == [("/data.bin", None)]
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["data.bin"]
