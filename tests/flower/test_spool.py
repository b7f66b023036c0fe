"""Replies beyond the memory budget go to disk; the result is the same."""

import logging
import os

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import save_file

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.flower._array_records import num_bytes, to_record
from steelyard.flower._streaming import ReplyStorage, StreamingGrid, content_bytes, parse_memory
from tests.flower import runs
from tests.flower.grid import LocalGrid


@pytest.mark.parametrize(
    ("text", "size"),
    [("2 GB", 2_000_000_000), ("500 MiB", 500 << 20), ("1.5kB", 1500), ("7B", 7), (12, 12)],
)
def test_budgets(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("bad", ["2", "GB", "-1 GB", 0, -5, True, 1.5])
def test_no_budgets(bad):
    with pytest.raises(SteelyardError, match="memory="):
        parse_memory(bad)


def test_half_of_the_memory_by_default():
    assert parse_memory(None) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def beside_the_model(algorithm):
    """Bytes of metrics and configuration in the largest reply."""
    sizes = []

    def change(number, reply):
        sizes.append(content_bytes(reply.content, without=("arrays", "steelyard.told")))
        return reply

    runs.start(runs.strategy(algorithm), LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    return max(sizes)


@pytest.mark.parametrize("kind", ["mlp", "images"])
@pytest.mark.parametrize("fit", [0, 2])
def test_from_disk_the_same_bits(kind, fit, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    plain = runs.start(runs.strategy("fedawa"), kind=kind)
    size = num_bytes(to_record(runs.model(kind).state_dict()))
    made, written = (
        runs.strategy("fedawa", memory=(6 + fit) * size + fit * beside_the_model("fedawa")),
        [],
    )
    real = ReplyStorage.add

    def take(self, reply, key):
        real(self, reply, key)
        written.append(len(list(self._folder.iterdir())) if self._folder else 0)

    monkeypatch.setattr(ReplyStorage, "add", take)
    result = runs.start(made, kind=kind)
    assert max(written) == runs.COUNT - fit
    assert runs.same(runs.params(plain), runs.params(result))
    assert list(tmp_path.glob("steelyard-spool-*")) == []  # swept


@pytest.mark.parametrize("client", ["scaffold", "feddyn:form=fedlaw"])
@pytest.mark.parametrize("fit", [0, 3])
def test_what_clients_tell_of_their_own_vectors_goes_to_disk_too(client, fit, monkeypatch):
    size = num_bytes(to_record(runs.model("mlp").state_dict()))
    algorithm = steelyard.Algorithm("fedavg", client=client)
    plain = runs.start(runs.strategy(algorithm))
    made, held, real = runs.strategy(algorithm), [], ReplyStorage.add
    made.storage.limit = (made.storage.server_models + fit) * size

    def take(self, reply, key):
        real(self, reply, key)
        held.append(
            (
                self.bytes_in_memory,
                [name for name in reply.content.array_records if reply.content.array_records[name]],
            )
        )

    monkeypatch.setattr(ReplyStorage, "add", take)
    result = runs.start(made)
    assert max(most for most, _ in held) <= fit * size + runs.COUNT * beside_the_model(algorithm)
    assert any(
        names == [] for _, names in held
    )  # neither the model nor the vector stayed in memory
    assert runs.same(runs.params(plain), runs.params(result))


def test_a_reply_with_vectors_takes_the_room_of_several():
    assert ReplyStorage(120).count_free_places(10) == 6
    assert (
        ReplyStorage(120, sent_vectors=1).count_free_places(10) == 3
    )  # the server holds vectors of its own
    assert ReplyStorage(150, reported_vectors=1).count_free_places(10) == 3


def test_it_pulls_no_more_than_there_is_room_for():
    size = num_bytes(to_record(runs.model("mlp").state_dict()))
    grid, pulled = LocalGrid(runs.app(), runs.COUNT), []
    real = grid.pull_messages
    grid.pull_messages = lambda names: pulled.append(len(names)) or real(names)
    runs.start(runs.strategy("fedavg", memory=8 * size), grid, rounds=1)
    assert pulled == [2, 1, 1, 1]


def test_a_bad_reply_is_not_spooled_but_quarantined(tmp_path):
    def change(number, reply):
        if number == 2:
            reply.content["arrays"]["0.bias"].__dict__.update(data=b"junk")
        return reply

    made = runs.strategy("fedavg", memory=1, out=tmp_path)
    runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    assert "not a numpy array" in runs.read_log(tmp_path)[0]["quarantined"]["2"]


def test_half_precision_is_kept_on_disk():
    storage = ReplyStorage(1)
    state = {"w": torch.randn(5).bfloat16(), "n": torch.tensor(3)}
    message = Message(RecordDict({"arrays": to_record(state)}), dst_node_id=1, message_type="train")
    storage.add(message, "arrays")
    source = storage.find_file(message.content)
    assert torch.equal(source.load("w"), state["w"])
    assert source.shapes["n"] == ((), torch.int64)
    storage.clear()
    assert storage.find_file(message.content) is None


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize("pointing", [True, False])
def test_a_client_cannot_point_at_a_file(pointing, memory, tmp_path):
    secret = tmp_path / "secret.safetensors"
    save_file(
        {name: torch.full_like(t, 7.0) for name, t in runs.model("mlp").state_dict().items()},
        secret,
    )

    def change(told):
        def act(number, reply):
            if number == 1:
                note = ConfigRecord({"path": str(secret)} if pointing else {"x": 1})
                del reply.content["steelyard.told"]
                reply.content.update(
                    {f"steelyard.spool{end}": note for end in ("", ".told")} if told else {}
                )
            return reply

        return act

    algorithm, results = steelyard.Algorithm("fedavg", client="scaffold"), []
    for told in (True, False):
        made = runs.strategy(algorithm, guard=False, memory=memory)
        results.append(
            runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=change(told)), rounds=2)
        )
    assert runs.same(*map(runs.params, results))


def test_nor_where_somebody_else_drives_the_rounds(tmp_path, caplog):
    def change(number, reply):
        if number == 1:
            del reply.content["arrays"]
            reply.content["steelyard.spool"] = ConfigRecord({"path": str(tmp_path)})
        return reply

    made, grid = runs.strategy("fedavg"), LocalGrid(runs.app(), runs.COUNT, change=change)
    sent = made.configure_train(1, to_record(runs.model("mlp").state_dict()), ConfigRecord(), grid)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        arrays, _ = made.aggregate_train(1, grid.send_and_receive(sent))
    assert "client 1: its reply has no ArrayRecord 'arrays'" in caplog.text
    assert arrays is not None


def full(*args):
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def test_a_full_disk_is_named_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.flower._streaming.save_file", full)
    with pytest.raises(
        SteelyardError,
        match=r"steelyard-spool-.*No space left.*: .*set TMPDIR",
    ):
        runs.start(runs.strategy("fedavg", memory=1), rounds=1)
    with pytest.raises(SteelyardError, match=r"run/spool: .*No space left.*: .*raise memory="):
        runs.start(runs.strategy("fedavg", memory=1, out=tmp_path / "run"), rounds=1)


def test_no_place_for_temporary_files(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(
        SteelyardError,
        match=r"^replies beyond memory=: No such file or directory: .*set TMP",
    ):
        runs.start(runs.strategy("fedavg", memory=1), rounds=1)


def test_in_the_run_directory_and_swept_after_a_kill(tmp_path, monkeypatch):
    seen, real = [], ReplyStorage.add

    def take(self, reply, key):
        real(self, reply, key)
        seen.append(sorted(file.name for file in (tmp_path / "spool").iterdir()))

    monkeypatch.setattr(ReplyStorage, "add", take)
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool/000099.safetensors").write_bytes(b"of a run that was killed")
    runs.start(runs.strategy("fedavg", memory=1, out=tmp_path), rounds=1)
    assert seen[-1] == [f"{number:06d}.safetensors" for number in range(1, 6)]
    assert not (tmp_path / "spool").exists()


def test_files_of_others_stay(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool/notes.txt").write_text("mine")
    runs.start(runs.strategy("fedavg", memory=1, out=tmp_path), rounds=1)
    assert [file.name for file in (tmp_path / "spool").iterdir()] == ["notes.txt"]


def test_waiting_for_many_nodes_takes_few_calls():
    grid, calls = LocalGrid(runs.app(), runs.COUNT), []
    grid.push_messages = lambda messages: [str(number) for number in range(40)]
    grid.pull_messages = lambda names: calls.append(len(names)) or []
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    courier = StreamingGrid(grid, 1.0, lambda reply, is_training: None, lambda: 0)
    assert courier.send_and_receive([message], timeout=1.0) == []
    assert len(calls) <= 3 * 40


BULK = 4 << 20


def bulk(**fields):
    return Array(
        **{
            "dtype": "uint8",
            "shape": (BULK,),
            "stype": "numpy.ndarray",
            "data": bytes(BULK),
            **fields,
        }
    )


def put(name, record):
    return lambda content: content.__setitem__(name, record())


BULKY = {
    "arrays beside the model": put("junk", lambda: ArrayRecord({"x": bulk()})),
    "two models": lambda content: content.update(
        {"a": ArrayRecord({"x": bulk()}), "b": content.pop("arrays")}
    ),
    "a tensor more": lambda content: content["arrays"].__setitem__("x", bulk()),
    "many tensors": lambda content: content["arrays"].update(
        {f"{n:04d}": bulk(data=bytes(2048)) for n in range(2048)}
    ),
    "a tensor that is too large": lambda content: content["arrays"].__setitem__("0.bias", bulk()),
    "no numpy array": lambda content: content["arrays"].__setitem__("0.bias", bulk(stype="pickle")),
    "a long type": lambda content: content["arrays"].__setitem__(
        "0.bias", bulk(data=b"", stype="x" * BULK)
    ),
    "a long dtype": lambda content: content["arrays"].__setitem__(
        "0.bias", bulk(data=b"", dtype="x" * BULK)
    ),
    "a long shape": lambda content: content["arrays"].__setitem__(
        "0.bias", bulk(data=b"", shape=(1,) * BULK)
    ),
    "a long name": put("arrays", lambda: ArrayRecord({"x" * BULK: bulk(data=b"")})),
    "vectors nobody asked for": put("steelyard.told", lambda: ArrayRecord({"x": bulk()})),
    "bytes": put("junk", lambda: ConfigRecord({"x": bytes(BULK)})),
    "text": put("junk", lambda: ConfigRecord({"x": "x" * BULK})),
    "texts": put("junk", lambda: ConfigRecord({"x": ["x" * 1024] * (BULK >> 10)})),
    "numbers": put("junk", lambda: MetricRecord({"x": [0.5] * (BULK >> 3)})),
    "a name": put("junk", lambda: MetricRecord({"x" * BULK: 1})),
    "the name of a record": lambda content: content.__setitem__("x" * BULK, ConfigRecord({"x": 1})),
    "our own record": put("steelyard", lambda: ConfigRecord({"partition-id": 1, "x": bytes(BULK)})),
}


@pytest.mark.parametrize("kind", BULKY)
def test_the_budget_counts_everything_that_a_reply_holds(kind, tmp_path, monkeypatch):
    """One client of five sends megabytes: its reply is emptied as it comes, and nothing of it is written to disk."""

    def change(number, reply):
        if number == 1:
            BULKY[kind](reply.content)
            bulky.append(reply.content)
        return reply

    bulky, held, real = [], [], ReplyStorage.add

    def take(self, reply, key):
        real(self, reply, key)
        held.append(self.bytes_in_memory)
        for file in self._folder.iterdir() if self._folder else ():
            assert file.stat().st_size < 100_000

    monkeypatch.setattr(ReplyStorage, "add", take)
    made = runs.strategy("fedavg", out=tmp_path, memory="1 MB")
    runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    assert content_bytes(bulky[0]) < 100_000
    assert max(held) < 1_000_000
    (record,) = runs.read_log(tmp_path)
    if kind == "vectors nobody asked for":  # they are dropped, and that is all
        assert set(record["weights"]) == set("01234")
    else:
        assert set(record["weights"]) == {"0", "2", "3", "4"}
        assert set(record["quarantined"]) <= {
            "1",
            "993",
        }  # by its node where its id went with the rest
    assert (tmp_path / "rounds.jsonl").stat().st_size < 20_000


def test_what_is_beside_models_takes_their_room():
    def change(number, reply):
        reply.content["more"] = ConfigRecord({"x": bytes(60_000)})
        return reply

    files = []
    for share, more in ((change, 60_000), (None, 0)):
        made = runs.strategy("fedavg", memory=200_000)
        made.train_metrics_aggr_fn = lambda contents, weight: None
        real, seen = made.aggregate_train, []
        made.aggregate_train = lambda number, replies, real=real, made=made, seen=seen: (
            seen.append((made.storage.file_count, made.storage.bytes_in_memory))
            or real(number, replies)
        )
        runs.start(made, LocalGrid(runs.app(), runs.COUNT, change=share), rounds=1)
        files.append(seen[0][0])
        assert seen[0][1] >= 5 * more
    assert files[1] == 0 < files[0]


def test_a_large_budget_leaves_room_for_records_of_ones_own(tmp_path):
    def change(number, reply):
        reply.content["more"] = ArrayRecord({"x": bulk()})
        return reply

    runs.start(
        runs.strategy("fedavg", out=tmp_path, memory="1 GB"),
        LocalGrid(runs.app(), runs.COUNT, change=change),
        rounds=1,
    )
    assert runs.read_log(tmp_path)[0]["quarantined"] == {}


def test_a_long_error_is_cut(tmp_path):
    def change(number, reply):
        if number != 1:
            return reply
        made = Message(Error(code=2, reason="x" * BULK), reply_to=reply)
        made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        errors.append(made)
        return made

    errors = []
    runs.start(
        runs.strategy("fedavg", out=tmp_path),
        LocalGrid(runs.app(), runs.COUNT, change=change),
        rounds=1,
    )
    assert len(errors[0].error.reason) == 10_000
    assert 400 < len(runs.read_log(tmp_path)[0]["failed"]["993"]) < 600
