"""`Experiment`: everything that defines a run, as one tree of options.

The same dataclasses are the Python interface, the keys of TOML files and `--set`, the configuration
in a run directory and the reference page. An option is one field: its default, its help text and
its limits stand there and nowhere else.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from steelyard.algorithm import (
    Algorithm,
    expand_composition,
    parse_broadcast,
    parse_optimizer,
    parse_refiner,
    parse_terms,
)
from steelyard.client._local import LocalTraining
from steelyard.client._losses import Loss, resolve_loss
from steelyard.core._errors import (
    SteelyardError,
    describe_unknown_name,
    locate_errors,
    nearest_name,
    shorten,
)
from steelyard.core._lora import parse_lora
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._options import (
    check_options,
    drop_unstored,
    list_keys,
    list_sections,
    option,
    section,
    to_plain,
)
from steelyard.core._refiner import Refiner
from steelyard.core._spec import parse, to_text
from steelyard.core._term import Broadcast, ClientTerm, Terms
from steelyard.core._weighting import Weighting
from steelyard.core.checks import LARGEST
from steelyard.data import CORRUPTIONS, PARTITIONS, SOURCES
from steelyard.data._proxy import Proxy
from steelyard.models import MODELS
from steelyard.recorder._shadow import parse_shadow
from steelyard.rules._combinators import parse_rule
from steelyard.runs._gram_log import parse_recording
from steelyard.runs._monitor import MODES, Monitor
from steelyard.sim._evaluation import TestMetric
from steelyard.sim._participation import Participation

_MAX_DEPTH = 20
_MAX_ROUNDS = 1_000_000  # the cohorts of all rounds are drawn before the first
_MAX_WORKERS = 1024
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "weighting": parse_rule,
    "client": parse_terms,
    "server": parse_optimizer,
    "broadcast": parse_broadcast,
    "refine": parse_refiner,
}
# Arguments of `simulate` that have another name in `Data`.
_DATA_ARGUMENTS = {
    "clients": "clients",
    "partition": "partition",
    "corrupt": "corrupt",
    "data_dir": "dir",
    "test": "test",
}


@dataclass(frozen=True)
class Data:
    """What clients train on, and how it is divided among them."""

    name: Any = option(
        "digits",
        "data set: digits (embedded), mnist, cifar10:scale=standard, ...; in Python also samples of "
        "your own or a `Federation`",
    )
    partition: str = option(
        "dirichlet:alpha=0.3", "iid, dirichlet:0.1, x_class:classes=1,iid=5, ..."
    )
    clients: int = option(10, "number of clients", low=1)
    corrupt: str | None = option(
        None,
        "wrong data of some clients: swap:share=0.5 (labels), swap:share=0.5,pair=common, "
        "flip:share=0.25, noise:share=0.5,deviation=1.0",
        is_late=True,
    )
    dir: str | Path | None = option(None, "directory of the data; else $STEELYARD_DATA")
    test: Any = option(None, "the server's test set, where the data has none", is_python_only=True)

    def __post_init__(self) -> None:
        check_options(self)
        if isinstance(self.name, str):
            with locate_errors(f"name={self.name!r}"):
                parse(self.name, SOURCES)
        with locate_errors(f"partition={self.partition!r}"):
            parse(self.partition, PARTITIONS)
        if self.corrupt is not None:
            with locate_errors(f"corrupt={self.corrupt!r}"):
                parse(self.corrupt, CORRUPTIONS)


@dataclass(frozen=True)
class Execution:
    """How a run is executed. The trained model does not depend on it, except on the device."""

    executor: str = option(
        "auto",
        "auto, serial (in this process, for debugging) or process (forked workers)",
        choices=("auto", "serial", "process"),
        is_stored=False,
    )
    workers: int | None = option(
        None, "processes; one per core by default", low=1, high=_MAX_WORKERS, is_stored=False
    )
    device: str = option("auto", "cpu, cuda, mps, or auto: the fastest there is")
    evaluate_every: int = option(
        1, "rounds between evaluations on the test set; 0 for never", low=0
    )
    evaluate_clients: int = option(
        0, "rounds between evaluations on every client's own data; 0 for never", low=0
    )
    evaluate_train: int = option(
        0,
        "rounds between evaluations on the training samples of all clients; 0 for never",
        low=0,
        is_late=True,
    )
    evaluate_fisher: int = option(
        0,
        "rounds between measurements of the trace of the Fisher information, which are slow; 0 for "
        "never",
        low=0,
        is_late=True,
    )
    fisher_samples: int = option(
        200, "samples of the clients that the Fisher trace is measured on", low=1, is_late=True
    )
    checkpoint_every: int = option(1, "rounds between checkpoints, at least", low=1)
    checkpoint_pace: float = option(
        0.02,
        "share of the time that writing checkpoints may take; short rounds write fewer; with 1, "
        "rounds wait for checkpoints and none is left out",
        low=0.0,
        high=1.0,
        open_low=True,
        is_stored=False,
    )
    keep: int = option(2, "checkpoints to keep, besides the best model", low=1)
    record: str = option(
        "auto",
        "inner products of the updates to write to the run directory, for `steelyard replay`: auto "
        "(rounds of up to 100 clients), gram, gram:layers=tensor, gram:layers=module, or none",
        is_late=True,
    )

    def __post_init__(self) -> None:
        check_options(self)
        parse_recording(self.record)


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a run: the algorithm, the data, the model and the training.

    Sections are dataclasses of their own, or dicts of their options.

    Examples:
        >>> import steelyard
        >>> experiment = steelyard.Experiment("fedadp", rounds=2, local={"lr": 0.05})
        >>> experiment.local.lr
        0.05
        >>> history = steelyard.simulate(experiment)
        >>> len(history)
        2
    """

    weighting: str | Weighting = option(
        "fedavg",
        "the rule: fedavg, fedadp, fedawa, 'feddisco|fedawa', ...; recommended is a rule with a "
        "client term",
    )
    client: str | ClientTerm | Terms | None = option(
        None,
        "client terms: fedprox:mu=0.01, fedcos, feddyn, scaffold, vrlsgd, fedproto, fpl, creff; "
        "add with +",
    )
    server: str | ServerOptimizer | None = option(
        None, "server optimizer: sgd, momentum, adam, yogi, adagrad"
    )
    broadcast: str | Broadcast | None = option(None, "fedmut: clients start from mutated models")
    refine: str | Refiner | None = option(
        None, "after the sum, on proxy data: server_ft, feddf, fedbe"
    )
    lora: str | None = option(
        None,
        "what the server returns for LoRA adapters: residual (exact, the default), stack, svd or "
        "factors",
        is_late=True,
    )
    model: str | nn.Module | None = option(
        None,
        "logistic, mlp, mcmahan_cnn, simple_cnn, resnet20, ...; by data set if not given; in Python "
        "also a module, whose parameters are the initial model",
    )
    rounds: int = option(50, "number of rounds", low=1, high=_MAX_ROUNDS)
    loss: str | Loss = option(
        "cross_entropy",
        "cross_entropy (classes), mse (numbers), bce (several yes-or-no labels); in Python also a "
        "function of outputs and targets",
        is_late=True,
    )
    target: float | None = option(None, "end the run when the monitored metric is this good")
    monitor: str = option(
        "accuracy",
        "what target and the best model refer to, on the test set: accuracy, loss, or one of "
        "test_metrics",
        is_late=True,
    )
    mode: str = option(
        "auto",
        "whether more (max) or less (min) of it is better; auto: min for losses and errors",
        choices=MODES,
        is_late=True,
    )
    seed: int = option(0, "random seed of everything", low=0)
    metrics: tuple[str, ...] = option((), "what clients report besides what the algorithm needs")
    shadow: str | tuple[str, ...] = option(
        (),
        "rules to compute beside the real one and to record, e.g. ['fedadp', 'fedawa']; they do not "
        "change the run",
        is_late=True,
    )
    test_metrics: TestMetric | Mapping[str, TestMetric] | None = option(
        None,
        "functions of all test outputs and targets to measure besides loss and accuracy",
        is_python_only=True,
    )
    cohorts: Sequence[Sequence[int]] | None = option(
        None, "the clients of each round, instead of drawing them", is_python_only=True
    )
    data: Data = section(Data, "what clients train on")
    local: LocalTraining = section(LocalTraining, "how clients train")
    participation: Participation = section(Participation, "who takes part")
    proxy: Proxy = section(Proxy, "the server's proxy data, for FedLAW, FedDF and the like")
    execution: Execution = section(Execution, "how the run is executed", is_inline=True)

    def __post_init__(self) -> None:
        # Sections may be dicts of their options.
        for name, field in list_sections(Experiment).items():
            options = _build_section(name, field.metadata["kind"], getattr(self, name))
            object.__setattr__(self, name, options)

        # A composition's name becomes its parts.
        for name, part in expand_composition({n: getattr(self, n) for n in _PARSERS}).items():
            object.__setattr__(self, name, part)

        # A bad name or value raises an error before anything starts.
        check_options(self)
        object.__setattr__(self, "shadow", _to_texts("shadow", self.shadow))
        parse_shadow(self.shadow, self.execution.record)
        object.__setattr__(self, "metrics", tuple(self.metrics))
        if isinstance(self.model, str):
            with locate_errors(f"model={self.model!r}"):
                parse(self.model, MODELS)
        if self.lora is not None:
            parse_lora(self.lora)
        resolve_loss(self.loss)
        Monitor.from_options(self.monitor, self.mode, self.target)
        self.local.check_terms(self.algorithm.client)

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        """The rule, client terms, server optimizer, broadcast and refiner together."""
        parts: dict[str, Any] = {}
        for name, parse_part in _PARSERS.items():
            spec = getattr(self, name)
            with locate_errors(f"{name}={spec!r}"):
                parts[name] = parse_part(spec)
        return Algorithm(**parts)

    @property
    def has_objects(self) -> bool:
        """Whether it holds objects that a file cannot: data, a model or a loss of your own, ..."""
        python_only = (self.data.test, self.proxy.data, self.test_metrics, self.cohorts)
        return not (
            isinstance(self.data.name, str)
            and (self.model is None or isinstance(self.model, str))
            and isinstance(self.loss, str)
            and all(value is None for value in python_only)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as plain data, with the keys of a TOML file.

        Raises:
            SteelyardError: if it holds objects that a file cannot.
        """
        if self.has_objects:
            raise SteelyardError(
                "this experiment holds objects (data, a model, functions), which a file cannot: "
                "name a data set, a model and a loss"
            )
        plain = to_plain(self)
        # Parts and options that were given as objects become their spec strings.
        for name, text in self.algorithm.texts.items():
            if plain[name] is not None and not isinstance(plain[name], str):
                plain[name] = text
        for name in ("schedule", "augment"):
            value = plain["local"][name]
            if value is not None and not isinstance(value, str):
                plain["local"][name] = to_text(value)
        if plain["data"]["dir"] is not None:
            plain["data"]["dir"] = str(plain["data"]["dir"])
        return plain

    def to_stored(self) -> dict[str, Any]:
        """Return the plain data for `config.json`, without what does not change a number."""
        return drop_unstored(Experiment, self.to_dict())

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str = "experiment") -> Experiment:
        """Return the experiment with these keys; all others have their defaults.

        Args:
            raw: plain data, as in a TOML file.
            source: where it comes from, for error messages.

        Raises:
            SteelyardError: for the first mistake, with its place, its value and what to do.
        """
        with locate_errors(source):
            values: dict[str, Any] = _to_tuples(raw)
            _check_keys(values)
            arguments: dict[str, Any] = {}
            for name, field in list_sections(cls).items():
                kind = field.metadata["kind"]
                if field.metadata["is_inline"]:
                    keys = {inner_field.name for inner_field in dataclasses.fields(kind)}
                    inner = {key: values.pop(key) for key in sorted(keys & values.keys())}
                    arguments[name] = kind(**inner)
                else:
                    inner = values.pop(name, {})
                    arguments[name] = _build_section(name, kind, inner)
            return cls(**values, **arguments)

    @classmethod
    def from_arguments(
        cls,
        algorithm: str | Weighting | Algorithm,
        data: Any,
        model: Any,
        options: Mapping[str, Any],
    ) -> Experiment:
        """Return the experiment that the arguments of `simulate` describe.

        Args:
            algorithm: a rule as text or object, or an algorithm.
            data: a data set by name, samples, or a federation; None for the default.
            model: a network by name or a module; None for the data set's own.
            options: options of the experiment, of its data and of its execution, by name.
        """
        options = dict(options)
        arguments: dict[str, Any] = {"model": model}
        if isinstance(algorithm, Algorithm):
            arguments |= {name: getattr(algorithm, name) for name in _PARSERS}
        else:
            arguments["weighting"] = algorithm

        # Options of the data and of the execution may be given without their section.
        data_options = {} if data is None else {"name": data}
        for name, key in _DATA_ARGUMENTS.items():
            if name in options:
                data_options[key] = options.pop(name)
        execution_names = {field.name for field in dataclasses.fields(Execution)}
        execution_options = {
            name: options.pop(name) for name in sorted(execution_names & options.keys())
        }
        for name, values in (("data", data_options), ("execution", execution_options)):
            if values and name in options:
                raise SteelyardError(
                    f"{name}= and {next(iter(values))}= are both given: put all into {name}="
                )
            if values:
                arguments[name] = values

        # All else are fields of the experiment.
        known_names = {field.name for field in dataclasses.fields(cls)} - {"weighting"}
        for name, value in options.items():
            if name not in known_names:
                raise SteelyardError(f"simulate: {_describe_option(name, known_names)}")
            arguments[name] = value
        return cls(**arguments)


def _to_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return an option that is one text or several as a tuple."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise SteelyardError(f"{name}={shorten(value)}: use a list of texts")
    return tuple(texts)


def _describe_option(name: str, known_names: set[str]) -> str:
    """Return the message for an unknown argument of `simulate`; it names the right section."""
    for section_name, field in list_sections(Experiment).items():
        if name in {inner.name for inner in dataclasses.fields(field.metadata["kind"])}:
            example = f"{section_name}={{{name!r}: ...}}"
            return f"{name!r} is an option of {section_name}: write {example}"
    names = [
        *known_names,
        *_DATA_ARGUMENTS,
        *(field.name for field in dataclasses.fields(Execution)),
    ]
    return describe_unknown_name("option", name, names)


def _build_section(name: str, kind: type[Any], value: Any) -> Any:
    """Return the options of a section, from the dataclass itself or a dict."""
    if isinstance(value, kind):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise SteelyardError(
            f"{name}={shorten(value)}: use a {kind.__name__}, or its options as a dict"
        )
    options = dict(value or {})
    known_names = [field.name for field in dataclasses.fields(kind)]
    for key in options:
        if key not in known_names:
            raise SteelyardError(f"{name}: {describe_unknown_name('option', key, known_names)}")
    try:
        return kind(**options)
    except SteelyardError as error:
        raise SteelyardError(f"{name}.{error}") from None


def _check_keys(values: Mapping[str, Any]) -> None:
    """Raise an error for a key that no file can have; it suggests the right one."""
    paths = [key.path for key in list_keys(Experiment)]
    sections = {path.partition(".")[0] for path in paths if "." in path}
    for name, value in values.items():
        if name in sections:
            known_keys = [path.partition(".")[2] for path in paths if path.startswith(f"{name}.")]
            if not isinstance(value, Mapping):
                raise SteelyardError(
                    f"{name} = {shorten(value)}: this is a section: write {name}.{known_keys[0]}"
                )
            for key in value:
                if key not in known_keys:
                    raise SteelyardError(_describe_key(f"{name}.{key}", key, known_keys, paths))
        elif name not in paths or "." in name:
            top_keys = [path for path in paths if "." not in path] + sorted(sections)
            raise SteelyardError(_describe_key(name, name, top_keys, paths))


def _describe_key(path: str, name: str, known_keys: Sequence[str], paths: Sequence[str]) -> str:
    """Return the message for an unknown key.

    Args:
        path: the key with its section.
        name: the key without it.
        known_keys: the keys of that section.
        paths: all keys with their sections.
    """
    elsewhere = [key for key in paths if key.endswith(f".{name}") or key == name]
    near = nearest_name(name, known_keys)
    if elsewhere:
        hint = f"did you mean {elsewhere[0]!r}?"
    elif near:
        hint = f"did you mean {near!r}?"
    else:
        hint = f"known: {', '.join(known_keys)}"
    return f"unknown key {path!r}: {hint}"


def read_experiment(path: Path | None, settings: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a TOML file (or the defaults) with `key=value` settings on top."""
    raw = {} if path is None else read_toml(path)
    for setting in settings:
        set_key(raw, setting)
    return Experiment.from_dict(raw, "configuration" if path is None else str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as plain data."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SteelyardError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SteelyardError(f"{path}: cannot be read: {error}") from None
    # Malformed, a number of too many digits, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"{path}: not TOML that can be read: {error}") from None


def set_key(raw: dict[str, Any], setting: str) -> None:
    """Put one `a.b=value` into plain data.

    The value is read as TOML if it can be, else as text.
    """
    key, separator, text = setting.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise SteelyardError(
            f"--set {shorten(setting)}: write key=value, e.g. --set rounds=50 --set data.name=mnist"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None if text.strip() == "none" else text.strip()
    # A number of too many digits, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise SteelyardError(f"--set {shorten(setting)}: {error}") from None
    values = raw
    for name in names[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise SteelyardError(f"--set {shorten(setting)}: {name!r} is a value, not a section")
    values[names[-1]] = value


def merge_sections(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configurations, section by section; where both have a key, the second wins."""
    merged: dict[str, Any] = {}
    for key, value in low.items():
        merged[key] = merge_sections(value, {}) if isinstance(value, Mapping) else value
    for key, value in high.items():
        if isinstance(value, Mapping):
            values = merged.get(key)
            merged[key] = merge_sections(values if isinstance(values, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def check_values(raw: Mapping[str, Any], source: str) -> None:
    """Raise an error for plain data with values that no key can have."""
    with locate_errors(source):
        _to_tuples(raw)


def _to_tuples(value: Any, key_path: str = "", depth: int = 0) -> Any:
    """Return plain data with tuples for lists; raise an error for values that no key can have.

    Args:
        value: plain data.
        key_path: the key that holds it, for messages.
        depth: how many sections and lists it is in.
    """
    if depth > _MAX_DEPTH:
        raise SteelyardError(
            f"{key_path}: more than {_MAX_DEPTH} sections or lists inside one another"
        )
    if isinstance(value, Mapping):
        return {
            key: _to_tuples(item, f"{key_path}.{key}".lstrip("."), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return tuple(_to_tuples(item, key_path, depth + 1) for item in value)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise SteelyardError(f"{key_path} = {shorten(value)}: use a number below 2^63")
    if isinstance(value, (datetime.date, datetime.time)):  # TOML has them
        raise SteelyardError(
            f"{key_path} = {value}: no key holds a date or a time: use quotation marks for text"
        )
    return value
