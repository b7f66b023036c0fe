"""`steelyard.simulate(...)`: run an experiment on this machine."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import nn

from steelyard.algorithm import Algorithm
from steelyard.client._flat import FlatModel
from steelyard.client._losses import resolve_loss, try_network
from steelyard.core._errors import SteelyardError
from steelyard.core._needs import Needs
from steelyard.core._weighting import Weighting
from steelyard.data import Federation
from steelyard.metrics import METRICS
from steelyard.recorder._shadow import parse_shadow
from steelyard.runs._directory import RunDirectory, read_config
from steelyard.runs._history import History
from steelyard.runs._monitor import Monitor
from steelyard.server._probe import Probe
from steelyard.sim._callbacks import Callback, Until, warn
from steelyard.sim._evaluation import (
    can_count_right,
    check_task,
    choose_monitor,
    has_group_accuracy,
    keep_one_output,
    resolve_test_metrics,
)
from steelyard.sim._executors import one_thread
from steelyard.sim._experiment import Experiment
from steelyard.sim._identity import check_done, check_same, describe_run, identity, name_cohorts
from steelyard.sim._inputs import build_federation, build_module, find_device, split_proxy
from steelyard.sim._lora_output import choose_lora_output
from steelyard.sim._simulator import Simulation
from steelyard.sim._work import SimulationContext


def simulate(
    algorithm: str | Weighting | Algorithm | Experiment = "fedavg",
    data: Any = None,
    model: str | nn.Module | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> History:
    """Run federated training on this machine.

    `simulate("fedadp", "digits", rounds=5)` is short for
    `simulate(Experiment("fedadp", data={"name": "digits"}, rounds=5))`.

    Args:
        algorithm: an `Experiment`; or the algorithm: a rule as text (`"fedawa"`), or an
            `Algorithm` of rule, client terms and server optimizer.
        data: a data set by name (`digits` is embedded), one of your own or a tuple (train, test) of
            them, each anything that `Dataset.of` takes; one data set per client, as a dict or a
            list; or a `Federation`.
        model: a network by name (`"mlp:hidden=[200,200]"`), or any `nn.Module`: its parameters are
            the initial model.
        out: the run directory; without one, nothing is written.
        resume: resume the run in `out` from its last checkpoint.
        overwrite: start a new run in `out` even if it holds one.
        callbacks: your own code to call; see `Callback`.
        options: fields of `Experiment`, such as `rounds`, `seed` or `local`; of its `Data`:
            `clients`, `partition`, `corrupt`, `test`, and `data_dir`; and of its `Execution`, such
            as `workers`. The reference lists all of them with their defaults.

    Returns:
        The records of all rounds and the trained model.

    Examples:
        >>> import steelyard
        >>> history = steelyard.simulate("fedadp", "digits", rounds=2, clients=4, executor="serial")
        >>> history.column("round")
        [1, 2]
        >>> history.final_accuracy > 0.2
        True
    """
    if not isinstance(algorithm, Experiment):
        experiment = Experiment.from_arguments(algorithm, data, model, options)
    else:
        experiment = algorithm
        _check_alone(data, model, options)
    # The directory comes first: another process may have it.
    with _open_directory(experiment, out) as directory:
        simulation, about, warning = _prepare(experiment, directory, callbacks)
        if warning is not None:
            warn(callbacks, warning)
        if directory is not None:
            config = _describe(experiment, simulation, about)
            _enter(directory, simulation, config, resume, overwrite)
        # A resumed run may be done already.
        if not simulation.monitor.is_target_reached(simulation.records):
            simulation.run()
        return History(
            str(experiment.algorithm),
            simulation.records,
            simulation.server.model(),
            None if directory is None else directory.path,
            simulation.monitor,
        )


def _check_alone(data: Any, model: Any, options: Mapping[str, Any]) -> None:
    """Raise an error for options that are given beside an experiment."""
    given_options = {**options}
    if data is not None:
        given_options["data"] = data
    if model is not None:
        given_options["model"] = model
    for name in given_options:
        raise SteelyardError(
            f"simulate: {name}= is given beside an Experiment: change the experiment instead, "
            f"dataclasses.replace(experiment, {name}=...)"
        )


def _open_directory(
    experiment: Experiment, out: str | Path | None
) -> AbstractContextManager[RunDirectory | None]:
    """Return the run directory, locked while it is open; None without one."""
    if out is None:
        return nullcontext()
    return RunDirectory(Path(out), experiment.execution.keep)


def _prepare(
    experiment: Experiment, directory: RunDirectory | None, callbacks: Sequence[Callback]
) -> tuple[Simulation, dict[str, Any], str | None]:
    """Build the run of an experiment.

    Returns:
        The run, its description, and a warning if proxy data are missing.
    """
    algorithm = experiment.algorithm
    local = experiment.local
    seed = experiment.seed
    test_metrics = resolve_test_metrics(experiment.test_metrics)

    # The clients' data, and the server's.
    federation = build_federation(experiment.data, seed).group_by_client()
    federation, samples, warning = split_proxy(federation, experiment.proxy, algorithm, seed)
    if test_metrics and federation.test is None:
        raise SteelyardError(
            "test_metrics: there is no test set to measure on: give test=, or data=(train, test)"
        )
    if local.augmentation is not None:
        local.augmentation.check(federation.train.inputs)

    # The model; a task that would train on nonsense raises an error.
    loss = resolve_loss(experiment.loss)
    check_task(federation, loss)
    module = build_module(experiment.model, federation, seed, loss)
    device = find_device(experiment.execution.device)
    flat = FlatModel(module, loss, federation.train.inputs, device)

    # What can be measured of the task, tried on two samples.
    first_samples = federation.train.take(slice(2))
    with one_thread():  # workers are forked from this process later
        outputs = try_network(
            flat, first_samples.inputs, first_samples.targets, required=bool(test_metrics)
        )
    has_accuracy = can_count_right(outputs, first_samples.targets)
    if experiment.execution.evaluate_fisher and federation.classes is None:
        raise SteelyardError(
            f"evaluate_fisher={experiment.execution.evaluate_fisher}: the Fisher trace needs "
            f"targets that are classes: use 0"
        )
    requested = Monitor.from_options(experiment.monitor, experiment.mode, experiment.target)
    monitor = choose_monitor(requested, has_accuracy, test_metrics, bool(callbacks))
    shadow = parse_shadow(experiment.shadow, experiment.execution.record)
    reported = _choose_metrics(algorithm.needs, experiment.metrics, federation, has_accuracy)
    all_reported = reported
    if shadow is not None:
        shadow.check_metrics(reported)
        needs = algorithm.needs | shadow.needs
        all_reported = _choose_metrics(needs, experiment.metrics, federation, has_accuracy)

    # The work of the clients, who takes part in which round, and the run.
    probe = None if samples is None else Probe.within(flat, samples, experiment.proxy, seed)
    output = keep_one_output(outputs, len(first_samples)) if test_metrics else None
    work = SimulationContext(
        algorithm,
        federation,
        flat,
        local,
        experiment.rounds,
        seed,
        all_reported,
        probe,
        output=output,
        has_groups=has_group_accuracy(federation.test, outputs is not None and has_accuracy),
        lora=choose_lora_output(experiment.lora, flat.layout, algorithm, can_change_base=True),
    )
    # Shadow rules are no part of a run's identity: a resumed run may have others.
    about = describe_run(work, experiment.participation, experiment.proxy)
    about["metrics"] = list(reported)
    watching = list(callbacks)
    if experiment.target is not None:
        watching.append(Until(monitor))
    simulation = Simulation(
        work,
        experiment.participation,
        experiment.execution,
        _choose_cohorts(experiment, len(federation.ids)),
        directory,
        watching,
        identity(about),
        monitor,
        test_metrics,
    )
    simulation.server.state.observer = shadow
    return simulation, about, warning


def _choose_cohorts(experiment: Experiment, clients: int) -> list[list[int]]:
    """Return the clients of every round by number: the given ones, or drawn."""
    if experiment.cohorts is not None:
        return _check_cohorts(experiment.cohorts, experiment.rounds, clients)
    return experiment.participation.draw(experiment.seed, clients, experiment.rounds)


def _describe(
    experiment: Experiment, simulation: Simulation, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what `config.json` holds: the settings if they are plain, and what came of them."""
    config: dict[str, Any] = {}
    if not experiment.has_objects:
        config["config"] = experiment.to_stored()
    subset = simulation.work.federation.train.subset
    if subset:
        config["subset"] = subset
    return {
        **config,
        "monitor": simulation.monitor.to_dict(),
        "test_metrics": list(simulation.test_metrics),
        "resolved": about,
    }


def _enter(
    directory: RunDirectory,
    simulation: Simulation,
    config: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
) -> None:
    """Start a run in a directory, or resume the one in it."""
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


def _choose_metrics(
    needs: Needs, metrics: Sequence[str], federation: Federation, has_accuracy: bool
) -> tuple[str, ...]:
    """Return the metrics that clients report, sorted by name.

    Args:
        needs: what the algorithm needs.
        metrics: further metrics that the user asks for.
        federation: the clients' data.
        has_accuracy: whether accuracy can be measured.
    """
    known_metrics = set(METRICS)
    for name in metrics:
        if name not in known_metrics:
            raise SteelyardError(
                f"metrics: clients cannot report {name!r}; they can report "
                f"{', '.join(sorted(known_metrics))}"
            )
    needed_metrics = needs.metrics | set(metrics)
    unknown = sorted(needed_metrics - known_metrics)
    if unknown:
        raise SteelyardError(
            f"the rule needs {unknown[0]!r}, which simulated clients do not report"
        )
    if "label_hist" in needed_metrics and federation.classes is None:
        raise SteelyardError("the rule needs 'label_hist', but the targets are not classes")
    accuracies = sorted(name for name in needed_metrics if METRICS[name].needs_accuracy)
    if accuracies and not has_accuracy:
        raise SteelyardError(
            f"clients cannot report {accuracies[0]!r}: the targets are not classes"
        )
    return tuple(sorted(needed_metrics))


def _check_cohorts(cohorts: Sequence[Sequence[int]], rounds: int, clients: int) -> list[list[int]]:
    """Return given cohorts as plain numbers, one list for each round at least."""
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
