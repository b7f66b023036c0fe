"""The configuration of a run.

TOML and `--set`, validated, every key with its place, its value and the nearest name.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard.algorithm import Algorithm
from steelyard.client.local import LocalTraining
from steelyard.core.checks import LARGEST
from steelyard.core.errors import SteelyardError, nearest_name, shorten
from steelyard.core.spec import parse
from steelyard.data import PARTITIONS, SOURCES
from steelyard.data.proxy import Proxy
from steelyard.models import MODELS
from steelyard.runs.monitor import check_target
from steelyard.sim.participation import Participation

_MAX_DEPTH = 20


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Section):
    """What clients train on."""

    name: str = Field(
        "digits", description="digits (embedded), mnist, cifar10:scale=standard, digits-5, ..."
    )
    partition: str = Field(
        "dirichlet:alpha=0.3", description="iid, dirichlet:0.1, x_class:classes=1,iid=5"
    )
    clients: int = Field(10, ge=1, description="number of clients")
    dir: str | None = Field(None, description="where the data is; else $STEELYARD_DATA")


class LocalSection(_Section):
    """How clients train."""

    epochs: int | None = Field(
        None, ge=1, description="passes over the local data per round (1 if steps is not given)"
    )
    steps: int | None = Field(
        None, ge=1, description="optimizer steps per round, instead of epochs"
    )
    batch_size: int = Field(32, ge=1, description="samples per step")
    lr: float = Field(0.1, gt=0, description="learning rate of round 1")
    schedule: str = Field(
        "constant", description="constant, exponential:0.995, step:every=10,gamma=0.1, cosine"
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="sgd or adam")
    momentum: float = Field(0.0, ge=0, le=1, description="of sgd")
    nesterov: bool = Field(False, description="Nesterov's momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 on the parameters")
    betas: tuple[float, float] = Field((0.9, 0.999), description="of adam")
    eps: float = Field(1e-8, gt=0, description="of adam")
    clip: float | None = Field(None, gt=0, description="largest norm of a step's gradient")
    persistent: bool = Field(False, description="keep momentum from one participation to the next")
    train_share: float = Field(
        1.0, gt=0, le=1, description="share of local data used for training (the authors' 0.7)"
    )
    norm_decay: bool = Field(False, description="count weight decay in the reported gradient norm")
    drop_last: bool = Field(False, description="leave out a last batch that is not full")
    augment: str | None = Field(
        None, description="training images at random: crop_flip, crop_flip:padding=4,flip=0"
    )
    batch_seed: int = Field(
        0, ge=0, description="another number: other batches, all else the same; a control for noise"
    )


class ParticipationSection(_Section):
    """Who takes part."""

    share: float = Field(1.0, gt=0, le=1, description="share of clients asked per round")
    count: int | None = Field(
        None, ge=1, description="number of clients asked per round, instead of a share"
    )
    train_all: bool = Field(False, description="all clients train, the cohort is drawn afterwards")
    dropout: float = Field(0.0, ge=0, le=1, description="probability that a client does not answer")
    spread: float = Field(0.0, ge=0, description="deviation of the logarithm of clients' speeds")
    deadline: float | None = Field(
        None, gt=0, description="in median durations; later answers are left out"
    )
    quorum: int = Field(1, ge=1, description="fewer answers make a round void")
    patience: int = Field(5, ge=1, description="so many void rounds in a row end the run")


class ProxySection(_Section):
    """The server's proxy data, for FedLAW, FedDF and the like."""

    per_class: int | None = Field(
        None, ge=1, description="samples per class, taken from the test set; none without"
    )
    rho: float | None = Field(
        None, ge=1, description="a long tail: the last class has per_class / rho samples"
    )
    batch_size: int = Field(128, ge=1, description="samples per step")
    shuffle: bool = Field(True, description="a new order for every epoch")
    balanced: bool = Field(False, description="draw equally many samples of every class")
    bn: Literal["proxy", "average", "frozen"] = Field(
        "proxy", description="BatchNorm statistics: proxy, average, frozen"
    )


class Config(_Section):
    """A run, whole."""

    weighting: str = Field(
        "fedavg", description="the rule: fedavg, fedadp, fedawa, 'feddisco|fedawa', ..."
    )
    client: str | None = Field(
        None,
        description="client terms: fedprox:mu=0.01, fedcos, feddyn, scaffold, vrlsgd; add with +",
    )
    server: str | None = Field(
        None, description="server optimizer: sgd, momentum, adam, yogi, adagrad"
    )
    broadcast: str | None = Field(None, description="fedmut: clients start from mutated models")
    refine: str | None = Field(
        None, description="after the sum, on proxy data: server_ft, feddf, fedbe"
    )
    model: str | None = Field(
        None,
        description="logistic, mlp, mcmahan_cnn, simple_cnn, resnet20; by data set if not given",
    )
    rounds: int = Field(50, ge=1, description="number of rounds")
    loss: Literal["cross_entropy", "mse", "bce"] = Field(
        "cross_entropy",
        description="cross_entropy (classes), mse (numbers), bce (several yes-or-no labels)",
    )
    target: float | None = Field(
        None, description="end the run when the monitored metric is this good"
    )
    monitor: Literal["accuracy", "loss"] = Field(
        "accuracy",
        description="what target and the best model refer to, on the test set: accuracy or loss",
    )
    mode: Literal["auto", "max", "min"] = Field(
        "auto", description="whether more of it is better; auto knows"
    )
    seed: int = Field(0, ge=0, description="of everything")
    executor: Literal["auto", "serial", "process"] = Field(
        "auto", description="serial is the debugger"
    )
    workers: int | None = Field(None, ge=1, description="processes; one per core by default")
    device: str = Field("auto", description="cpu, cuda, mps")
    evaluate_every: int = Field(
        1, ge=0, description="rounds between evaluations on the test set; 0 for never"
    )
    evaluate_clients: int = Field(
        0, ge=0, description="rounds between evaluations on clients' own data; 0 for never"
    )
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints, at least")
    keep: int = Field(2, ge=1, description="checkpoints to keep, beside the best model")
    metrics: tuple[str, ...] = Field(
        (), description="what clients report beside what the algorithm needs"
    )
    data: Data = Data()
    local: LocalSection = LocalSection()
    participation: ParticipationSection = ParticipationSection()
    proxy: ProxySection = ProxySection()

    def check(self) -> None:
        """Builds the parts, so that a bad name or option is refused, with its place, before anything starts."""
        parts: dict[str, Callable[[], object]] = {
            f"weighting = {self.weighting!r}": lambda: Algorithm(self.weighting),
            f"client = {self.client!r}": lambda: Algorithm(client=self.client),
            f"server = {self.server!r}": lambda: Algorithm(server=self.server),
            f"broadcast = {self.broadcast!r}": lambda: Algorithm(broadcast=self.broadcast),
            f"refine = {self.refine!r}": lambda: Algorithm(refine=self.refine),
            f"model = {self.model!r}": lambda: (
                None if self.model is None else parse(self.model, MODELS)
            ),
            f"data.name = {self.data.name!r}": lambda: parse(self.data.name, SOURCES),
            f"data.partition = {self.data.partition!r}": lambda: parse(
                self.data.partition, PARTITIONS
            ),
            f"target = {self.target!r}": lambda: check_target(self.target, self.monitor),
            "local": lambda: LocalTraining(**self.local.model_dump()),
            "participation": lambda: Participation(**self.participation.model_dump()),
            "proxy": lambda: Proxy(**self.proxy.model_dump()),
        }
        for key, part in parts.items():
            try:
                part()
            except SteelyardError as error:
                raise SteelyardError(f"{key}: {error}") from None

    def to_stored(self) -> dict[str, Any]:
        """As plain data for `config.json`, without what changes no number.

        Keys that older runs do not have are left out where they say nothing new, so that such runs
        compare as before.
        """
        later = {
            name
            for name in ("loss", "monitor", "mode")
            if getattr(self, name) == self._default(name)
        }
        plain_config = self.model_dump(mode="json", exclude={"workers", "executor", *later})
        if not self.local.batch_seed:
            del plain_config["local"]["batch_seed"]
        return plain_config

    @classmethod
    def _default(cls, name: str) -> Any:
        return cls.model_fields[name].default

    def arguments(self) -> dict[str, Any]:
        """As arguments of `simulate`."""
        plain = self.model_dump()
        parts = {
            name: plain.pop(name)
            for name in ("weighting", "client", "server", "broadcast", "refine")
        }
        data = plain.pop("data")
        return plain | {
            "algorithm": Algorithm(parts.pop("weighting"), **parts),
            "data": data["name"],
            "partition": data["partition"],
            "clients": data["clients"],
            "data_dir": data["dir"],
        }


def read(path: Path | None, settings: Sequence[str] = ()) -> Config:
    """A configuration from a TOML file (or the defaults) with `key=value` settings on top."""
    raw = {} if path is None else read_toml(path)
    for setting in settings:
        set_key(raw, setting)
    return validate_config(raw, "configuration" if path is None else str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SteelyardError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SteelyardError(f"{path}: cannot be read: {error}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # malformed, a number of too many digits, or nested too deeply
        raise SteelyardError(f"{path}: not TOML that can be read: {error}") from None


def validate_config(raw: Mapping[str, Any], source: str) -> Config:
    """A configuration from plain data.

    The first mistake is named with its place, its value and the cure.
    """
    try:
        config = Config.model_validate(_tuples(raw))
    except ValidationError as error:
        raise SteelyardError(f"{source}: {_sentence(error)}") from None
    except SteelyardError as error:
        raise SteelyardError(f"{source}: {error}") from None
    try:
        config.check()
    except SteelyardError as error:
        raise SteelyardError(f"{source}: {error}") from None
    return config


def set_key(raw: dict[str, Any], setting: str) -> None:
    """Puts one `a.b=value` into a configuration.

    A value is read as TOML if it can be, else as text.
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
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of too many digits, or nested too deeply
        raise SteelyardError(f"--set {shorten(setting)}: {error}") from None
    section = raw
    for name in names[:-1]:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise SteelyardError(f"--set {shorten(setting)}: {name!r} is a value, not a section")
    section[names[-1]] = value


def merge_sections(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two configurations, section by section; where both have a key, the second wins."""
    merged = {
        key: merge_sections(value, {}) if isinstance(value, Mapping) else value
        for key, value in low.items()
    }
    for key, value in high.items():
        if isinstance(value, Mapping):
            section = merged.get(key)
            merged[key] = merge_sections(section if isinstance(section, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def check_values(raw: Mapping[str, Any], source: str) -> None:
    """Refuse plain data with values that no key of a configuration can have."""
    try:
        _tuples(raw)
    except SteelyardError as error:
        raise SteelyardError(f"{source}: {error}") from None


def _tuples(value: Any, key_path: str = "", depth: int = 0) -> Any:
    """Lists as tuples, which strict validation asks for; refuses what no key can be.

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
            key: _tuples(item, f"{key_path}.{key}".lstrip("."), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return tuple(_tuples(item, key_path, depth + 1) for item in value)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise SteelyardError(f"{key_path} = {shorten(value)}: use a number below 2^63")
    if isinstance(value, (datetime.date, datetime.time)):  # TOML has them
        raise SteelyardError(
            f"{key_path} = {value}: no key holds a date or a time: use quotation marks for text"
        )
    return value


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known_keys = _names(first["loc"][:-1])
        near = nearest_name(str(first["loc"][-1]), known_keys)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known_keys)}"
        elsewhere = [
            f"{section}.{first['loc'][-1]}"
            for section in ("data", "local", "participation", "proxy")
            if first["loc"][-1] in _names((section,))
        ]
        return f"unknown key {key!r}: {f'did you mean {elsewhere[0]!r}?' if elsewhere else hint}"
    return f"{key} = {shorten(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _names(section_path: Sequence[Any]) -> list[str]:
    model: Any = Config
    for part in section_path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
