"""Writing a merged model: the old one or the new one is there, whole, whatever happens."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.stores import _staging as staging
from steelyard.stores import _writer as writer
from tests.stores.test_safetensors import shard

BASE = {"a": torch.arange(6.0), "b": torch.ones(4), "c": torch.zeros(2, 2)}
CLIENTS = {
    name: {key: value + shift for key, value in BASE.items()}
    for name, shift in (("x", 1.0), ("y", 3.0))
}
MERGED = {key: value + 2.0 for key, value in BASE.items()}


@pytest.fixture
def job(tmp_path):
    """A merge of single files."""
    save_file(BASE, tmp_path / "base.safetensors")
    for name, model in CLIENTS.items():
        save_file(model, tmp_path / f"{name}.safetensors")
    return steelyard.Merge(
        tmp_path / "base.safetensors",
        {name: tmp_path / f"{name}.safetensors" for name in CLIENTS},
        "uniform",
    )


@pytest.fixture
def sharded_job(tmp_path):
    """A merge of models in two shards."""
    base = shard(tmp_path / "base", BASE, 2)
    (base / "config.json").write_text('{"from": "base"}')
    clients = {name: shard(tmp_path / name, model, 2) for name, model in CLIENTS.items()}
    return steelyard.Merge(base, clients, "uniform")


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def is_merged(folder):
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors.keys() == MERGED.keys() and all(
        torch.equal(tensors[key], MERGED[key]) for key in MERGED
    )


# Merges again and again, killed before the first, second, third ... call that changes the file
# system.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
import steelyard
from steelyard.stores import _staging as staging

folder, out, base = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
clients = {name: folder / base.replace("base", name) for name in ("x", "y")}
NAMES = "open mkdir truncate pwrite write fsync link rename replace unlink rmdir chmod".split()

def merge(kill_at):
    calls = 0
    def patched(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call
    job = steelyard.Merge(folder / base, clients, "uniform")
    for name in NAMES:
        setattr(os, name, patched(getattr(os, name)))
    staging.exchange = patched(staging.exchange)
    job.run(out, force=True)

def read(path):
    if path.is_file():
        return hash(path.read_bytes())
    files = sorted(path.rglob("*"))
    return hash(str([(file.name, file.is_file() and file.read_bytes()) for file in files]))

torch.set_num_threads(1)
steelyard.Merge, steelyard.parse_rule("uniform")  # imported once, not in every child
pristine = folder / "pristine"
os.rename(out, pristine)
print("old", read(pristine), flush=True)
for kill_at in range(1, 500):
    if out.is_dir():
        shutil.rmtree(out)
    if pristine.is_dir():
        shutil.copytree(pristine, out)
    else:
        shutil.copy(pristine, out)
    child = os.fork()
    if child == 0:
        merge(kill_at)
        os._exit(0)
    was_killed = os.waitpid(child, 0)[1] != 0
    num_hidden = sum(name.startswith(".") for name in os.listdir(folder))
    print("killed" if was_killed else "finished", read(out), num_hidden, flush=True)
    if not was_killed:
        break
"""


def kill_everywhere(folder, out, base):
    """Kills a merge at every step; returns what was at `out` before, after each step, and in the end."""
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": paths}
    command = [sys.executable, "-c", KILLED, str(folder), str(out), base]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *steps, last = [line.split() for line in done.stdout.splitlines()]
    assert first[0] == "old"
    assert all(
        step[0] == "killed" and int(step[2]) <= 1 for step in steps
    )  # each removes what the last one left
    assert last[0] == "finished"
    assert last[2] == "0"
    return first[1], [step[1] for step in steps], last[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_directory_is_the_old_or_the_new_one_wherever_a_forced_merge_is_killed(
    tmp_path, sharded_job
):
    out = shard(
        tmp_path / "out",
        {"old": torch.zeros(3), "other": torch.zeros(2), "third": torch.ones(1)},
        3,
    )
    (out / "README.md").write_text("mine")
    (out / "notes").mkdir()
    (out / "notes" / "a.txt").write_text("mine, too")
    old, steps, new = kill_everywhere(tmp_path, out, "base")
    assert len(steps) > 20
    assert {*steps} == {old, new}
    assert is_merged(out)
    assert (out / "README.md").read_text() == "mine"
    assert (out / "notes" / "a.txt").read_text() == "mine, too"
    assert (out / "config.json").read_text() == '{"from": "base"}'
    assert not (out / "model-2.safetensors").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_file_is_the_old_or_the_new_one_wherever_a_forced_merge_is_killed(tmp_path, job):
    out = tmp_path / "out.safetensors"
    save_file({"old": torch.zeros(3)}, out)
    old, steps, new = kill_everywhere(tmp_path, out, "base.safetensors")
    assert len(steps) > 8
    assert {*steps} == {old, new}
    assert torch.equal(load_file(out)["a"], MERGED["a"])


def appear(path):
    """What somebody else puts at a path while a merge runs."""
    if path.suffix:
        path.write_text("somebody else's")
    else:
        path.mkdir()
        (path / "a.txt").write_text("somebody else's")


@pytest.mark.parametrize("out", ["out.safetensors", "out"])
@pytest.mark.parametrize("has_links", [True, False])
def test_what_appears_during_a_merge_is_not_overwritten(out, has_links, tmp_path, job, monkeypatch):
    out = tmp_path / out

    def publish(sink):
        if not out.exists():
            appear(out)
        real(sink)

    def refuse(*arguments, **options):
        raise OSError(errno.EPERM, "no links here")

    real = writer.FileSink._publish
    monkeypatch.setattr(writer.FileSink, "_publish", publish)
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(steelyard.SteelyardError, match="appeared while the merge ran"):
        job.run(out)
    assert (out if out.suffix else out / "a.txt").read_text() == "somebody else's"
    assert not hidden(tmp_path)


def test_a_file_is_written_where_the_file_system_has_no_links(tmp_path, job, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    job.run(tmp_path / "out.safetensors")
    assert torch.equal(load_file(tmp_path / "out.safetensors")["a"], MERGED["a"])


def test_a_link_to_nothing_is_not_overwritten_and_not_followed(tmp_path, job):
    out = tmp_path / "out.safetensors"
    out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(steelyard.SteelyardError, match="exists"):
        job.run(out)
    job.run(out, force=True)
    assert not out.is_symlink()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["open", "truncate", "pwrite", "fsync", "link", "mkdir"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_merge_that_fails_leaves_nothing_behind(name, number, tmp_path, sharded_job, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    calls = 0

    def fail(*arguments, **options):
        nonlocal calls
        if arguments and "lib" in str(arguments[0]):
            return real(*arguments, **options)
        calls += 1
        if calls == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    real = getattr(os, name)
    handles = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with monkeypatch.context() as patched:
        patched.setattr(os, name, fail)
        message = ""
        try:
            sharded_job.run(tmp_path / "out")
        except SteelyardError as error:
            message = str(error)
    if message:
        assert "No space left on device: nothing is written" in message
        assert sorted(tmp_path.rglob("*")) == before
    else:
        assert is_merged(tmp_path / "out")
    assert handles is None or len(os.listdir("/proc/self/fd")) <= handles


def test_two_merges_at_once_do_not_disturb_each_other(tmp_path, job):
    out = tmp_path / "out.safetensors"
    with writer.FileSink(out, job.store.source, job.store.layout, {}) as first:
        again = threading.Thread(target=job.run, args=(out,))
        again.start()
        again.join()
        assert first.staging.directory.exists()  # in use: not a leftover
        out.unlink()
    assert out.exists()
    assert not hidden(tmp_path)


def test_only_leftovers_of_ours_are_removed(tmp_path, job):
    for name in (
        ".out.safetensors.steelyard-abcdefgh",
        ".out.safetensors.steelyard-mine",
        ".out.safetensors.backup",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / ".out.safetensors.steelyard-abcdefgi").mkdir()
    (tmp_path / ".out.safetensors.steelyard-abcdefgi" / "thesis.tex").touch()
    job.run(tmp_path / "out.safetensors")
    assert sorted(hidden(tmp_path)) == [
        ".out.safetensors.backup",
        ".out.safetensors.steelyard-abcdefgi",
        ".out.safetensors.steelyard-mine",
    ]


def test_a_file_changed_just_before_the_exchange_is_kept_as_it_is_now(
    tmp_path, sharded_job, monkeypatch
):
    out = tmp_path / "out"
    sharded_job.run(out)
    (out / "a.txt").write_text("old")

    def exchange(first, second):
        if second == out:
            (out / "a.new").write_text("new")
            os.replace(out / "a.new", out / "a.txt")
            (out / "b.txt").write_text("late")
            (out / "c").mkdir()
        real(first, second)

    real = staging.exchange
    monkeypatch.setattr(staging, "exchange", exchange)
    sharded_job.run(out, force=True)
    assert (out / "a.txt").read_text() == "new"
    assert (out / "b.txt").read_text() == "late"
    assert (out / "c").is_dir()


def test_a_system_without_exchange_refuses_before_it_works(tmp_path, sharded_job, monkeypatch):
    sharded_job.run(tmp_path / "out")
    monkeypatch.setattr(staging.ctypes, "CDLL", lambda *arguments, **options: object())
    with pytest.raises(steelyard.SteelyardError, match="remove it first"):
        sharded_job.run(
            tmp_path / "out", force=True, on_read=lambda count: pytest.fail("it worked in vain")
        )
    assert is_merged(tmp_path / "out")
    assert not hidden(tmp_path)


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_the_wrong_kind_of_thing_is_not_replaced(kind, tmp_path, job, sharded_job):
    out = tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        out.symlink_to(tmp_path / "elsewhere")
    else:
        out = tmp_path / "out.safetensors"
        out.mkdir()
    with pytest.raises(steelyard.SteelyardError, match="out"):
        (job if kind == "directory" else sharded_job).run(out, force=True)
    assert os.path.lexists(out)
    assert not os.listdir(tmp_path / "elsewhere")
    assert not hidden(tmp_path)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_have_the_modes_that_the_user_asked_for(umask, tmp_path, job, sharded_job):
    before = os.umask(umask)
    try:
        job.run(tmp_path / "out.safetensors")
        sharded_job.run(tmp_path / "out")
    finally:
        os.umask(before)

    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(tmp_path / "out.safetensors") == 0o666 & ~umask
    assert mode(tmp_path / "out") == 0o777 & ~umask
    assert {mode(file) for file in (tmp_path / "out").iterdir()} == {0o666 & ~umask}
    (tmp_path / "out.safetensors").chmod(0o640)
    (tmp_path / "out").chmod(0o750)
    job.run(tmp_path / "out.safetensors", force=True)
    sharded_job.run(tmp_path / "out", force=True)
    assert mode(tmp_path / "out.safetensors") == 0o640
    assert mode(tmp_path / "out") == 0o750


def test_hidden_names_cannot_be_guessed(tmp_path, job):
    names = set()
    for _ in range(3):
        with writer.FileSink(
            tmp_path / "out.safetensors", job.store.source, job.store.layout, {}, True
        ) as sink:
            names.add(sink.staging.directory.name)
            assert stat.S_IMODE(sink.staging.directory.stat().st_mode) == 0o700
    assert len(names) == 3


def test_small_files_of_the_base_are_copied(tmp_path, sharded_job):
    base = tmp_path / "base"
    for name in (
        "tokenizer.json",
        "README.md",
        ".hidden",
        "optimizer.pt",
        "pytorch_model.bin",
        "other.index.json",
    ):
        (base / name).write_text(name)
    (base / "runs").mkdir()
    (base / "blob").write_text("from a cache")
    (base / "vocab.txt").symlink_to("blob")
    with open(base / "huge.json", "wb") as file:
        file.truncate(writer._MAX_COMPANION + 1)
    sharded_job.run(tmp_path / "out")
    copied = ["README.md", "blob", "config.json", "tokenizer.json", "vocab.txt"]
    shards = ["model-0.safetensors", "model-1.safetensors", "model.safetensors.index.json"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(copied + shards)
    assert (tmp_path / "out" / "vocab.txt").read_text() == "from a cache"
    assert not (tmp_path / "out" / "vocab.txt").is_symlink()


def test_a_base_that_is_a_file_has_no_small_files(tmp_path, job):
    (tmp_path / "config.json").write_text("{}")
    job.run(tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["base.safetensors"]


def test_an_index_of_an_older_model_does_not_stay(tmp_path, job, sharded_job):
    sharded_job.run(tmp_path / "out")
    job.run(tmp_path / "out", force=True)
    assert sorted(os.listdir(tmp_path / "out")) == ["base.safetensors", "config.json"]
    index = json.dumps({"weight_map": {"a": "../x.safetensors"}})
    (tmp_path / "out" / "model.safetensors.index.json").write_text(index)
    job.run(tmp_path / "out", force=True)
    assert (tmp_path / "x.safetensors").exists()
    assert is_merged(tmp_path / "out")
