"""Loggers, read back: TensorBoard and MLflow for real, W&B (not installed here) by a stand-in that records calls."""

import sys
from types import SimpleNamespace

import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.sim._loggers import (
    Logger,
    MLflow,
    TensorBoard,
    WandB,
    flatten_config,
    select_numbers,
)
from tests.sim.runs import clients, same, simulate

OPTIONS = {"test": clients(1, seed=9)["client-0"], "rounds": 4}
RULE = "fedavg|shrink:0.99"
EXPECTED = {
    "accuracy",
    "loss",
    "effective_clients",
    "gamma",
    "coherence",
    "timings/train",
    "timings/total",
}


def run(logger, **options):
    return simulate(RULE, callbacks=[logger], **{**OPTIONS, **options})


def interrupted(make, out):
    """A run of 4 rounds that is killed in its 4th, goes back to the checkpoint of round 2, and is resumed."""

    class Killed(Exception):
        pass

    class Kill(steelyard.Callback):
        def progress(self, simulation, round, done, total):
            if round == 4:
                raise Killed

    with pytest.raises(Killed):
        simulate(RULE, **OPTIONS, callbacks=[make(), Kill()], out=out, checkpoint_every=2)
    return simulate(RULE, **OPTIONS, callbacks=[make()], out=out, resume=True, checkpoint_every=2)


# ---- TensorBoard


def events(path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(path))
    found.Reload()
    return found


def test_tensorboard_has_every_round_and_the_configuration(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra [tensorboard]")
    history = run(TensorBoard(tmp_path))
    found = events(tmp_path)
    assert set(found.Tags()["scalars"]) >= EXPECTED
    for name in ("accuracy", "loss", "coherence"):
        points = found.Scalars(name)
        assert [point.step for point in points] == [1, 2, 3, 4]
        assert [point.value for point in points] == pytest.approx(history.column(name), rel=1e-6)
    config = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"| weighting | {RULE.replace(':', ':gamma=')} |" in config
    assert "| local.lr | 0.1 |" in config
    assert same(history, simulate(RULE, **OPTIONS))  # looking changes nothing


def test_tensorboard_goes_on_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra [tensorboard]")
    history = interrupted(lambda: TensorBoard(tmp_path / "tb"), tmp_path / "run")
    points = events(tmp_path / "tb").Scalars("loss")
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert [point.value for point in points] == pytest.approx(history.column("loss"), rel=1e-6)
    assert len(events(tmp_path / "tb").Tensors("config/text_summary")) == 1


# ---- MLflow


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="the extra [mlflow]")
    uri = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)

    def runs(experiment="steelyard"):
        return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])

    return SimpleNamespace(uri=uri, runs=runs, history=client.get_metric_history)


def test_mlflow_has_every_round_and_the_configuration(store):
    history = run(MLflow(store.uri, "mine"))
    (found,) = store.runs("mine")
    assert set(found.data.metrics) >= EXPECTED
    for name in ("accuracy", "loss", "gamma"):
        points = store.history(found.info.run_id, name)
        assert [(point.step, point.value) for point in points] == list(
            enumerate(history.column(name), 1)
        )
    assert found.data.params["weighting"] == "fedavg|shrink:gamma=0.99"
    assert found.data.params["local.schedule"] == "constant"
    assert found.info.status == "FINISHED"
    run(MLflow(store.uri, "mine"))
    assert len(store.runs("mine")) == 2


def test_mlflow_goes_on_after_a_resume(store, tmp_path):
    history = interrupted(lambda: MLflow(store.uri), tmp_path / "run")
    (found,) = store.runs()
    points = store.history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == list(
        enumerate(history.column("loss"), 1)
    )
    assert found.info.status == "FINISHED"
    simulate(RULE, **OPTIONS, callbacks=[MLflow(store.uri)], out=tmp_path / "other")
    assert len(store.runs()) == 2  # another directory is another run
    simulate(RULE, **OPTIONS, callbacks=[MLflow(store.uri)], out=tmp_path / "other", overwrite=True)
    assert len(store.runs()) == 3  # and so is a fresh start


# ---- W&B


@pytest.fixture
def wandb(monkeypatch):
    calls = []

    class Run:
        def log(self, data, step):
            calls.append(("log", step, data))

        def finish(self, exit_code):
            calls.append(("finish", exit_code))

    def init(**options):
        calls.append(("init", options))
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return calls


def test_wandb_is_called_as_it_should_be(wandb):
    history = run(WandB("mine", mode="offline"))
    kinds = [call[0] for call in wandb]
    assert kinds == ["init", "log", "log", "log", "log", "finish"]
    assert wandb[-1] == ("finish", 0)
    options = wandb[0][1]
    assert (options["project"], options["mode"]) == ("mine", "offline")
    assert options["config"]["seed"] == 0
    assert options["config"]["clients"] == 6
    assert "id" not in options  # without a run directory there is nothing to go on with
    assert [(call[1], call[2]["loss"]) for call in wandb[1:5]] == list(
        enumerate(history.column("loss"), 1)
    )


def test_wandb_goes_on_after_a_resume(wandb, tmp_path):
    interrupted(lambda: WandB("mine"), tmp_path / "run")
    first, second = (call[1] for call in wandb if call[0] == "init")
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    wandb.clear()
    simulate(RULE, **OPTIONS, callbacks=[WandB("mine")], out=tmp_path / "other")
    assert wandb[0][1]["id"] != first["id"]


# ---- all


class Failing(Logger):
    title = "Failing"

    def __init__(self, at):
        self.at, self.calls = at, []

    def did(self, what):
        self.calls.append(what)
        if what == self.at:
            raise ConnectionError("no route to host")

    def open(self, run, config):
        self.did("open")

    def write(self, step, numbers):
        self.did(f"write {step}")

    def close(self, failed):
        self.did("close failed" if failed else "close")


@pytest.mark.parametrize(("at", "calls"), [("open", 1), ("write 2", 3), ("close", 6)])
def test_a_failing_logger_warns_once_and_goes_quiet(at, calls):
    logger = Failing(at)
    with pytest.warns(
        RuntimeWarning,
        match=r"Failing failed \(ConnectionError: no route to host\): the run continues",
    ) as said:
        history = run(logger)
    assert len(said) == 1
    assert len(history) == 4
    assert len(logger.calls) == calls
    assert same(history, simulate(RULE, **OPTIONS))


def test_a_logger_that_failed_is_tried_again_in_the_next_run():
    logger = Failing("write 2")
    with pytest.warns(RuntimeWarning, match="Failing failed"):
        run(logger)
    logger.at = None
    logger.calls.clear()
    run(logger)
    assert logger.calls == ["open", "write 1", "write 2", "write 3", "write 4", "close"]


class Broken(steelyard.Callback):
    def __init__(self, when):
        self.when = when

    def start(self, simulation):
        if self.when == 0:
            raise KeyError("broken")

    def round(self, simulation, record):
        if record["round"] == self.when:
            raise KeyboardInterrupt


def test_a_run_that_fails_closes_the_loggers_that_were_opened():
    before, after = Failing(None), Failing(None)
    with pytest.raises(KeyboardInterrupt):
        simulate(RULE, **OPTIONS, callbacks=[before, Broken(2), after])
    assert before.calls == ["open", "write 1", "write 2", "close failed"]
    assert after.calls == ["open", "write 1", "close failed"]
    before.calls.clear()
    after.calls.clear()
    with pytest.raises(KeyError):
        simulate(RULE, **OPTIONS, callbacks=[before, Broken(0), after])
    assert before.calls == ["open", "close failed"]
    assert after.calls == []


def test_a_run_that_fails_is_marked_as_failed(store, wandb):
    with pytest.raises(KeyboardInterrupt):
        simulate(RULE, **OPTIONS, callbacks=[MLflow(store.uri), WandB("mine"), Broken(2)])
    (found,) = store.runs()
    assert found.info.status == "FAILED"
    assert wandb[-1] == ("finish", 1)


def test_mlflow_writes_every_round_of_a_run_after_a_resumed_one(store, tmp_path):
    logger = MLflow(store.uri)
    interrupted(lambda: logger, tmp_path / "resumed")
    simulate(RULE, **OPTIONS, callbacks=[logger], out=tmp_path / "fresh")
    for found in store.runs():
        points = store.history(found.info.run_id, "loss")
        assert [point.step for point in points] == [1, 2, 3, 4], found.info.run_name


def test_mlflow_without_a_server_says_what_it_takes(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(
        SteelyardError,
        match=r"in a database here \(sqlite:.*tracking server.*pip install sqlalchemy",
    ):
        MLflow("sqlite:///mlflow.db")


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("tensorboard", lambda: TensorBoard("x"), "tensorboard"),
        ("mlflow", MLflow, "mlflow"),
        ("wandb", lambda: WandB("x"), "wandb"),
    ],
)
def test_a_missing_package_is_named_with_its_cure(module, make, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        SteelyardError, match=rf"needs {module}, .* pip install 'steelyard\[{extra}\]'"
    ):
        make()


def test_a_round_that_was_not_evaluated_has_fewer_numbers():
    assert select_numbers({"round": 1, "loss": None, "coherence": 0.5}) == {"coherence": 0.5}


def test_the_configuration_is_plain():
    seen = {}

    class Look(steelyard.Callback):
        def start(self, simulation):
            seen.update(flatten_config(simulation))

    simulate(
        steelyard.Algorithm("fedawa", client="fedprox", server="momentum"),
        rounds=1,
        callbacks=[Look()],
    )
    assert (seen["weighting"], seen["client"], seen["server"]) == ("fedawa", "fedprox", "momentum")
    assert all(
        value is None or isinstance(value, (str, int, float, bool, tuple))
        for value in seen.values()
    ), seen
