"""`steelyard.simulate(...)`: from what a user has to a run."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from steelyard.algorithm import Algorithm
from steelyard.client.augment import Augmentation
from steelyard.client.flat import FlatModel, Loss
from steelyard.client.local import LocalTraining
from steelyard.client.losses import resolve_loss, try_network
from steelyard.core import checks
from steelyard.core.errors import SteelyardError, describe_unknown_name
from steelyard.data import Federation
from steelyard.data.proxy import Proxy
from steelyard.metrics import METRICS
from steelyard.runs.directory import RunDirectory, read_config
from steelyard.runs.history import History
from steelyard.runs.monitor import Monitor
from steelyard.server.probe import Probe
from steelyard.sim.callbacks import Callback, Until, warn
from steelyard.sim.evaluation import (
    TestMetric,
    can_count_right,
    check_task,
    choose_monitor,
    keep_one_output,
    resolve_test_metrics,
)
from steelyard.sim.executors import one_thread
from steelyard.sim.identity import check_done, check_same, describe_run, identity, name_cohorts
from steelyard.sim.inputs import device_of, federated, module_of, with_proxy
from steelyard.sim.participation import Participation
from steelyard.sim.simulator import Options, Simulation
from steelyard.sim.work import SimulationContext

_MOST_ROUNDS = 1_000_000  # cohorts of all rounds are drawn before the first
_MOST_WORKERS = 1024


def simulate(
    algorithm: str | Algorithm = "fedavg",
    data: Any = "digits",
    model: str | nn.Module | None = None,
    *,
    rounds: int = 50,
    target: float | None = None,
    monitor: str = "accuracy",
    mode: str = "auto",
    clients: int = 10,
    partition: str = "dirichlet:alpha=0.3",
    data_dir: str | Path | None = None,
    test: Any = None,
    local: LocalTraining | Mapping[str, Any] | None = None,
    participation: Participation | Mapping[str, Any] | None = None,
    loss: str | Loss = "cross_entropy",
    metrics: Sequence[str] = (),
    test_metrics: TestMetric | Mapping[str, TestMetric] | None = None,
    proxy: Proxy | Mapping[str, Any] | None = None,
    seed: int = 0,
    executor: str = "auto",
    workers: int | None = None,
    device: str = "auto",
    evaluate_every: int = 1,
    evaluate_clients: int = 0,
    checkpoint_every: int = 1,
    checkpoint_pace: float = 0.02,
    keep: int = 2,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    cohorts: Sequence[Sequence[int]] | None = None,
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | None = None,
) -> History:
    """Runs federated training on this machine.

    Args:
        algorithm: a rule as text (`"fedawa"`), or an `Algorithm` of rule, client terms and server
            optimizer.
        data: a data set by name (`digits` is embedded), one of your own or a tuple (train, test) of
            them, each anything that `Dataset.of` takes; one data set per client, as a dict or a
            list; or a `Federation`.
        model: a network by name (`"mlp:hidden=[200,200]"`), or any `nn.Module`: its parameters are
            the initial model.
        rounds: how many, at most.
        target: end the run when the monitored metric is this good: an accuracy, unless `monitor`
            says otherwise.
        monitor: the metric on the test set that `target` and the best model refer to: `accuracy`,
            `loss`, or one of `test_metrics`. A task without an accuracy is monitored by its loss.
        mode: whether more (`max`) or less (`min`) of it is better; `auto` is `min` for losses and
            errors by their name.
        clients: number of clients the data set is spread over.
        partition: how: `iid`, `dirichlet:0.1`, `x_class:classes=1,iid=5`.
        data_dir: where the files of named data sets are; else `$STEELYARD_DATA`.
        test: the server's test set, where `data` has none.
        local: how clients train: a `Local`, or its options as a dict.
        participation: who takes part: a `Participation`, or its options as a dict.
        loss: `"cross_entropy"`, `"mse"`, `"bce"`, or a function `loss(outputs, targets)`, a mean
            over the batch.
        metrics: what clients report beside what the algorithm needs (for records of your own).
        test_metrics: what to measure on the test set beside loss and accuracy: a function
            `metric(outputs, targets)` of the outputs for all test samples that returns a number, or
            a dict of them by name.
        proxy: the server's proxy data, for FedLAW, FedDF and the like: a `Proxy`, or its options as
            a dict.
        seed: of initial model, partition, cohorts, batches: everything is a function of it.
        executor: `serial` (in this process, for debugging), `process` (forked workers), or `auto`.
        workers: number of processes; one per core by default. Results do not depend on it.
        device: `cpu`, `cuda`, `mps`, or `auto`: the fastest there is.
        evaluate_every: rounds between evaluations on the test set; 0 for never.
        evaluate_clients: rounds between evaluations of the global model on every client's own data;
            0 for never.
        checkpoint_every: rounds between checkpoints in the run directory, at least.
        checkpoint_pace: share of the time that writing them may take: a run of short rounds writes
            fewer.
        keep: how many checkpoints to keep, beside the best.
        out: the run directory; without one, nothing is written.
        resume: go on with the run in `out`, from its last checkpoint.
        overwrite: start afresh in `out` even if it holds a run.
        cohorts: the clients of each round, by number, instead of drawing them.
        callbacks: code of yours to call; see `Callback`.
        config: what to write to `config.json` beside the resolved options (the command line's own).

    Examples:
        >>> import steelyard
        >>> history = steelyard.simulate("fedadp", "digits", rounds=2, clients=4, executor="serial")
        >>> history.column("round")
        [1, 2]
        >>> history.final_accuracy > 0.2
        True
    """
    if not isinstance(algorithm, Algorithm):
        algorithm = Algorithm(algorithm)
    rounds, keep = _to_python(rounds), _to_python(keep)
    numbers = (workers, evaluate_every, evaluate_clients, checkpoint_every, checkpoint_pace)
    options = Options(executor, *map(_to_python, numbers))
    training: LocalTraining = _options("local", LocalTraining, local)
    sampling: Participation = _options("participation", Participation, participation)
    server_data: Proxy = _options("proxy", Proxy, proxy)
    own_metrics = resolve_test_metrics(test_metrics)
    monitored = Monitor.from_options(monitor, mode, _to_python(target))
    _check(algorithm, training, rounds, options, keep)
    with (
        RunDirectory(Path(out), keep) if out is not None else nullcontext() as directory
    ):  # first: it may be taken
        federation = federated(data, clients, partition, data_dir, test, seed).group_by_client()
        federation, samples, warning = with_proxy(federation, server_data, algorithm, seed)
        if own_metrics and federation.test is None:
            raise SteelyardError(
                "test_metrics: there is no test set to measure on: give test=, or data=(train, "
                "test)"
            )
        if isinstance(training.augment, Augmentation):
            training.augment.check(federation.train.inputs)
        # refuse a task that would train on nonsense, and find out what can be measured of it
        chosen_loss = resolve_loss(loss)
        check_task(federation, chosen_loss)
        module = module_of(model, federation, seed, chosen_loss)
        flat = FlatModel(module, chosen_loss, federation.train.inputs, device_of(device))
        samples_tried = federation.train.take(slice(2))
        with one_thread():  # workers are forked from this process later
            outputs = try_network(
                flat, samples_tried.inputs, samples_tried.targets, required=bool(own_metrics)
            )
        has_accuracy = can_count_right(outputs, samples_tried.targets)
        monitored = choose_monitor(monitored, has_accuracy, own_metrics, bool(callbacks))
        probe = None if samples is None else Probe.within(flat, samples, server_data, seed)
        reported = _reported(algorithm, metrics, federation, has_accuracy)
        output = keep_one_output(outputs, len(samples_tried)) if own_metrics else None
        work = SimulationContext(
            algorithm, federation, flat, training, rounds, seed, reported, probe, output=output
        )
        population = len(federation.ids)
        client_numbers = (
            sampling.draw(seed, population, rounds)
            if cohorts is None
            else _numbers(cohorts, rounds, population)
        )
        about = describe_run(work, sampling, server_data)
        watching = [*callbacks, Until(monitored)] if target is not None else callbacks
        if warning is not None:
            warn(callbacks, warning)
        simulation = Simulation(
            work,
            sampling,
            options,
            client_numbers,
            directory,
            watching,
            identity(about),
            monitored,
            own_metrics,
        )
        if directory is not None:
            evaluation = {"monitor": monitored.to_dict(), "test_metrics": list(own_metrics)}
            _enter(
                directory,
                simulation,
                {**(config or {}), **evaluation, "resolved": about},
                resume,
                overwrite,
            )
        if not monitored.is_target_reached(simulation.records):  # it may be done already
            simulation.run()
        path = None if directory is None else directory.path
        return History(
            str(algorithm), simulation.records, simulation.server.model(), path, monitored
        )


def _to_python(value: Any) -> Any:
    """A number of numpy's as one of Python's: it is written down."""
    return value.item() if isinstance(value, np.generic) else value


def _options(option: str, kind: type[Any], value: Any) -> Any:
    """Options as an object, from the object itself or a dict."""
    if isinstance(value, kind):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise SteelyardError(f"{option}={value!r}: use a {kind.__name__}, or its options as a dict")
    option_names = [field.name for field in dataclasses.fields(kind)]
    for name in value or {}:
        if name not in option_names:
            raise SteelyardError(f"{option}: {describe_unknown_name('option', name, option_names)}")
    return kind(**(value or {}))


def _enter(
    directory: RunDirectory,
    simulation: Simulation,
    config: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
) -> None:
    """Starts a run in a directory, or goes on with the one in it."""
    if resume and directory.has_run:
        check_same(
            directory.path, read_config(directory.path).get("resolved", {}), config["resolved"]
        )
        for warning in simulation.resume():
            warn(simulation.callbacks, warning)
        check_done(directory.path, simulation)
        directory.begin(
            config, name_cohorts(simulation), _describe_clients(simulation)
        )  # it may have been prolonged
        return
    directory.prepare(overwrite)
    directory.begin(config, name_cohorts(simulation), _describe_clients(simulation))


def _describe_clients(simulation: Simulation) -> dict[str, Any]:
    """Who holds what: ids and sizes, and counts by class and by group where there are any."""
    data = simulation.work.federation
    description: dict[str, Any] = {"ids": list(data.ids), "sizes": data.sizes.tolist()}
    if data.classes is not None and data.train.targets.ndim == 1:
        description["counts"] = data.label_counts().tolist()
    if data.train.groups is not None:
        description["groups"] = data.group_counts().tolist()
    return description


def _reported(
    algorithm: Algorithm, metrics: Sequence[str], federation: Federation, has_accuracy: bool
) -> tuple[str, ...]:
    known_metrics = set(METRICS)
    for name in metrics:
        if name not in known_metrics:
            raise SteelyardError(
                f"metrics: clients cannot report {name!r}; they can report "
                f"{', '.join(sorted(known_metrics))}"
            )
    needed_metrics = algorithm.needs.metrics | set(metrics)
    unknown = sorted(needed_metrics - known_metrics)
    if unknown:
        raise SteelyardError(
            f"the rule needs {unknown[0]!r}, which simulated clients do not report"
        )
    for name in sorted(needed_metrics):
        lacks_classes = METRICS[name].is_per_class and federation.classes is None
        lacks_accuracy = METRICS[name].needs_accuracy and not has_accuracy
        if lacks_classes or lacks_accuracy:
            raise SteelyardError(f"clients cannot report {name!r}: the targets are not classes")
    return tuple(sorted(needed_metrics))


def _check(
    algorithm: Algorithm, local: LocalTraining, rounds: int, options: Options, keep: int
) -> None:
    checks.integer("rounds", rounds, 1, _MOST_ROUNDS)
    if options.executor not in ("auto", "serial", "process"):
        raise SteelyardError(f"executor={options.executor!r}: use auto, serial or process")
    if options.workers is not None:
        checks.integer("workers", options.workers, 1, _MOST_WORKERS)
    checks.integer("evaluate_every", options.evaluate_every)
    checks.integer("evaluate_clients", options.evaluate_clients)
    checks.integer("checkpoint_every", options.checkpoint_every, 1)
    checks.number("checkpoint_pace", options.checkpoint_pace, 0.0, 1.0, open_low=True)
    checks.integer("keep", keep, 1)
    local.check_terms(algorithm.client)


def _numbers(cohorts: Sequence[Sequence[int]], rounds: int, clients: int) -> list[list[int]]:
    """Given cohorts as plain numbers, one list for each round at least."""
    cohorts = list(cohorts)
    if len(cohorts) < rounds:
        raise SteelyardError(f"cohorts: {len(cohorts)} of them for {rounds} rounds")
    return [_distinct(number, cohort, clients) for number, cohort in enumerate(cohorts, 1)]


def _distinct(number: int, cohort: Sequence[int], clients: int) -> list[int]:
    with suppress(TypeError):
        row = [operator.index(client) for client in cohort]
        if len(set(row)) == len(row) and all(0 <= client < clients for client in row):
            return row
    raise SteelyardError(
        f"cohorts: round {number} has {cohort!r}: use distinct whole numbers below {clients}"
    )
