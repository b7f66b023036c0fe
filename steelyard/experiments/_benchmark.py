"""The benchmark: every rule in every setting, over the same seeds.

`benchmark.toml` defines it, in the keys of `steelyard run`:

    [base]       what all runs share
    [[setting]]  data, partition and participation
    [[rule]]     an algorithm as one line of text: a rule, then `key=value` for what else it changes

`benchmark.csv` has the results of our own runs, one line per run. A line names the algorithm in the
same text form, so that results of rules that are not in the file can be read as well. It has the
fingerprint of the configuration, by which results of another benchmark are refused, and the
processor: another one rounds differently, and server seconds are comparable on one processor only.
"""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard._version import __version__
from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.experiments._jobs import Job, Outcome, compute_fingerprint
from steelyard.experiments._tables import csv_lines
from steelyard.experiments.scores import SCORES
from steelyard.runs._directory import read_environment
from steelyard.sim._experiment import Experiment, check_values, merge_sections, read_toml, set_key

DEFINITION = Path(__file__).with_name("benchmark.toml")
PUBLISHED = Path(__file__).with_name("benchmark.csv")
SCORE_NAMES = ("last10", "worst_client", "client_q10", "rounds", "server_seconds", "void_rounds")

_COLUMNS = (
    "rule",
    "label",
    "algorithm",
    "note",
    "setting",
    "seed",
    *SCORE_NAMES,
    "error",
    "version",
    "fingerprint",
    "processor",
)


@dataclass(frozen=True)
class Setting:
    """Where rules are compared.

    Attributes:
        name: as in `--settings`.
        label: for a column's head.
        about: one sentence.
        target: accuracy of the score `rounds`.
        raw: what it changes, as plain configuration.
    """

    name: str
    label: str
    about: str
    target: float
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A row of the benchmark.

    Attributes:
        name: as in `--rules`.
        label: for people.
        algorithm: a rule, then `key=value` for what else the row changes: `fedavg
            client=fedcos:mu=0.02`.
        note: what a reader has to know, such as that it uses proxy data.
        is_control: whether it does nothing, and shows what noise does.
        tried: algorithms of which the tuning seeds chose one; empty where a paper's default was
            taken.
    """

    name: str
    label: str
    algorithm: str
    note: str = ""
    is_control: bool = False
    tried: tuple[str, ...] = ()

    @property
    def raw(self) -> dict[str, Any]:
        """What it changes, as plain configuration."""
        return parse_algorithm(self.algorithm)


@dataclass(frozen=True)
class Benchmark:
    """Rules, settings and seeds.

    Attributes:
        title: for the page.
        seeds: those that count.
        tuning_seeds: those on which options were chosen.
        reference: name of the rule that the others are compared with.
        base: what all runs share, as plain configuration.
        settings: in the order of the page.
        rules: in the order of the page.
    """

    title: str
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    reference: str
    base: Mapping[str, Any]
    settings: tuple[Setting, ...]
    rules: tuple[Rule, ...]

    def select(self, rules: Sequence[str] = (), settings: Sequence[str] = ()) -> Benchmark:
        """Return the benchmark with only the rules and settings of these names.

        All of them where none is named.
        """
        for kind, names, known in (
            ("rule", rules, [rule.name for rule in self.rules]),
            ("setting", settings, [setting.name for setting in self.settings]),
        ):
            for name in names:
                if name not in known:
                    raise SteelyardError(describe_unknown_name(kind, name, known))
        return replace(
            self,
            rules=tuple(rule for rule in self.rules if not rules or rule.name in rules),
            settings=tuple(
                setting for setting in self.settings if not settings or setting.name in settings
            ),
        )

    def change(self, changes: Sequence[str]) -> Benchmark:
        """Return the benchmark with `key=value` on top of what all runs share."""
        base = merge_sections(self.base, {})
        for change in changes:
            set_key(base, change)
        return replace(self, base=base)

    def with_rules(self, rules: Sequence[Rule], alone: bool = False) -> Benchmark:
        """Return the benchmark with further rules, or with these alone."""
        known = {rule.name for rule in self.rules}
        for rule in rules:
            if rule.name in known:
                raise SteelyardError(
                    f"rule {rule.name!r} is there already: give yours another name"
                )
        return replace(self, rules=(*(() if alone else self.rules), *rules))

    def config(self, rule: Rule, setting: Setting) -> dict[str, Any]:
        """Return the configuration of a cell without a seed, as plain data."""
        return merge_sections(merge_sections(self.base, setting.raw), rule.raw)

    def fingerprint(self, rule: Rule, setting: Setting) -> str:
        """Return a short hash of what a cell runs and of its target.

        Where the data is, and the names of rule and setting, do not change it.
        """
        return compute_fingerprint(self.config(rule, setting), setting.target)

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        """Return all runs, seed by seed, so that a benchmark that is cut short has whole seeds."""
        return [
            self._job(rule, setting, seed)
            for seed in seeds
            for setting in self.settings
            for rule in self.rules
        ]

    def _job(self, rule: Rule, setting: Setting, seed: int) -> Job:
        name = f"{setting.name}/{rule.name}"
        config = Experiment.from_dict(
            {**self.config(rule, setting), "seed": seed}, f"benchmark {name}"
        )
        labels = {"rule": rule.name, "setting": setting.name, "seed": str(seed)}
        return Job(f"{name}/seed-{seed}", config, labels)

    def candidates(self) -> Benchmark:
        """Return the benchmark of the options that were tried, one row for each."""
        rules = [
            Rule(f"{rule.name}-{number}", f"{rule.label}: {algorithm}", algorithm)
            for rule in self.rules
            for number, algorithm in enumerate(rule.tried, 1)
        ]
        if not rules:
            raise SteelyardError("nothing to tune: none of these rules has options that were tried")
        return replace(self, rules=tuple(rules), seeds=self.tuning_seeds)


@dataclass(frozen=True)
class Result:
    """A run of the benchmark.

    Attributes:
        rule: what was run.
        setting: name of the setting.
        seed: of everything.
        scores: by name; accuracies as shares, None where a run has no such score.
        error: why the run failed; empty if it did not.
        version: of the library.
        fingerprint: of the configuration; empty if it is not known.
        processor: name of the processor; empty if it is not known.
    """

    rule: Rule
    setting: str
    seed: int
    scores: Mapping[str, float | None]
    error: str = ""
    version: str = __version__
    fingerprint: str = ""
    processor: str = ""


def read_benchmark(path: str | Path | None = None) -> Benchmark:
    """Read a benchmark from a TOML file; ours by default."""
    source = DEFINITION if path is None else Path(path)
    raw = read_toml(source)
    check_values(raw, str(source))
    try:
        return _parse(raw)
    except KeyError as error:
        raise SteelyardError(
            f"{source}: {error.args[0]!r} is missing: compare with {DEFINITION.name}"
        ) from None
    except (TypeError, tomllib.TOMLDecodeError) as error:
        raise SteelyardError(f"{source}: not a benchmark: {error}") from None


def _parse(raw: Mapping[str, Any]) -> Benchmark:
    rules = tuple(
        Rule(
            name=rule["id"],
            label=rule["label"],
            algorithm=rule["algorithm"],
            note=rule.get("note", ""),
            is_control=rule.get("control", False),
            tried=tuple(rule.get("tried", ())),
        )
        for rule in raw["rule"]
    )
    settings = tuple(
        Setting(
            setting["id"], setting["label"], setting["about"], setting["target"], setting["set"]
        )
        for setting in raw["setting"]
    )
    names = [rule.name for rule in rules]
    if raw["reference"] not in names:
        raise SteelyardError(f"reference: {describe_unknown_name('rule', raw['reference'], names)}")
    for name in (*names, *(setting.name for setting in settings)):
        _check_name(name)
    seeds = tuple(raw["seeds"])
    return Benchmark(
        raw["title"],
        seeds,
        tuple(raw.get("tuning_seeds", ())),
        raw["reference"],
        raw["base"],
        settings,
        rules,
    )


def parse_rule_text(text: str) -> Rule:
    """Return the row of `NAME: ALGORITHM`, e.g. `mine: fedadp:alpha=3 client=fedcos:mu=0.02`."""
    label, separator, algorithm = text.partition(": ")
    if not separator or not label.strip() or not algorithm.strip():
        raise SteelyardError(
            f"{text!r}: write 'NAME: RULE key=value ...', e.g. 'mine: fedadp:alpha=3 client=fedcos'"
        )
    name = re.sub(r"[^a-z0-9.]+", "-", label.strip().lower()).strip("-.")
    _check_name(name)
    rule = Rule(name, label.strip(), algorithm.strip())
    _ = rule.raw  # a mistake in the text is reported here
    return rule


def parse_algorithm(text: str) -> dict[str, Any]:
    """Return `RULE key=value ...` as plain configuration."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SteelyardError(f"{text!r}: {error}") from None
    if not words:
        raise SteelyardError("an algorithm without a rule: begin with one, such as fedavg")
    raw: dict[str, Any] = {"weighting": words[0]}
    for word in words[1:]:
        set_key(raw, word)
    return raw


def make_results(benchmark: Benchmark, outcomes: Iterable[Outcome]) -> list[Result]:
    """Return the scores of runs; a run that failed has none, and says why."""
    rules = {rule.name: rule for rule in benchmark.rules}
    settings = {setting.name: setting for setting in benchmark.settings}
    results = []
    for outcome in outcomes:
        labels = outcome.job.labels
        rule = rules[labels["rule"]]
        setting = settings[labels["setting"]]
        scores: dict[str, float | None] = dict.fromkeys(SCORE_NAMES)
        if outcome.history is not None:
            for name in SCORE_NAMES:
                scores[name] = SCORES[name].of(outcome.history, setting.target)
        results.append(
            Result(
                rule,
                setting.name,
                int(labels["seed"]),
                scores,
                error=outcome.error or "",
                fingerprint=benchmark.fingerprint(rule, setting),
                processor=str(read_environment(outcome.path).get("processor", "")),
            )
        )
    return results


def format_results(results: Iterable[Result]) -> str:
    """Return results as CSV, one line per run."""
    rows: list[list[str | float | None]] = [[*_COLUMNS]]
    for result in results:
        rule = result.rule
        # A share of 10,000 images has four digits: six are more than there is to know.
        values = [result.scores[name] for name in SCORE_NAMES]
        scores = [None if value is None else f"{value:.6g}" for value in values]
        note = "control" if rule.is_control else rule.note
        head = [rule.name, rule.label, rule.algorithm, note, result.setting]
        tail = [result.error, result.version, result.fingerprint, result.processor]
        rows.append([*head, result.seed, *scores, *tail])
    return csv_lines(rows)


def read_results(path: Path) -> list[Result]:
    """Read results that `format_results` made."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise SteelyardError(f"{path}: cannot be read: {error.strerror or error}") from None
    results = []
    for number, line in enumerate(lines, 2):
        try:
            scores = {name: float(line[name]) if line[name] else None for name in SCORE_NAMES}
            rule = Rule(
                line["rule"],
                line["label"],
                line["algorithm"],
                line["note"],
                line["note"] == "control",
            )
            results.append(
                Result(
                    rule,
                    line["setting"],
                    int(line["seed"]),
                    scores,
                    line["error"],
                    line["version"],
                    line.get("fingerprint") or "",
                    line.get("processor") or "",
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SteelyardError(
                f"{path}, line {number}: not a result of the benchmark: {error!r}"
            ) from None
    return results


def select_missing_jobs(
    benchmark: Benchmark, jobs: Sequence[Job], known: Iterable[Result]
) -> list[Job]:
    """Return the jobs that have no result yet; a run that failed is repeated.

    Args:
        benchmark: what the jobs run.
        jobs: from `Benchmark.jobs`.
        known: results of earlier runs, perhaps on another machine.

    Raises:
        SteelyardError: if a known result is of another algorithm with the same name.
    """
    algorithms = {rule.name: rule.algorithm for rule in benchmark.rules}
    names = set()
    for result in known:
        rule = result.rule
        expected = algorithms.get(rule.name, rule.algorithm)
        if rule.algorithm != expected:
            raise SteelyardError(
                f"rule {rule.name!r} is {rule.algorithm!r} in the results and {expected!r} here: "
                "give one of them another name"
            )
        if not result.error:
            names.add((rule.name, result.setting, str(result.seed)))
    remaining = []
    for job in jobs:
        labels = job.labels
        if (labels["rule"], labels["setting"], labels["seed"]) not in names:
            remaining.append(job)
    return remaining


def check_fingerprints(benchmark: Benchmark, results: Iterable[Result]) -> None:
    """Raise an error if a result does not belong to a benchmark.

    A result whose fingerprint is not known is accepted.
    """
    settings = {setting.name: setting for setting in benchmark.settings}
    for result in results:
        name = f"{result.setting}/{result.rule.name}/seed-{result.seed}"
        if result.setting not in settings:
            raise SteelyardError(
                f"{name}: {describe_unknown_name('setting', result.setting, settings)}"
            )
        expected = benchmark.fingerprint(result.rule, settings[result.setting])
        if result.fingerprint not in ("", expected):
            raise SteelyardError(
                f"{name}: the result is of another configuration: use the benchmark (--file) and "
                "the --set with which it was run"
            )


def combine_results(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Return all results, each run once: the new one where both have it."""
    combined = {(result.rule.name, result.setting, result.seed): result for result in old}
    combined |= {(result.rule.name, result.setting, result.seed): result for result in new}
    return list(combined.values())


def _check_name(name: Any) -> None:
    """Refuse a name that cannot be a directory's."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", name):
        raise SteelyardError(f"{name!r}: use a name of small letters, digits, - and . (at most 64)")
