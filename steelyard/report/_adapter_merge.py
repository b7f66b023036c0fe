"""The page of a merge of LoRA adapters: whether they fit together, and what the merge lost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from steelyard._version import __version__
from steelyard.adapter_merge import MergeSummary
from steelyard.report._figures import Bars, Figure, Heat, Report, Row, Table
from steelyard.stores._adapters import PREFIX

FEW_IN_COMMON = 0.1  # mean cosine below which adapters have little in common
_HINT = (
    "Norm: length of the adapter's change of the weights. Cosine: mean cosine to the other "
    "adapters. Both are of the products B A, which act, and not of the factors."
)


def make_adapter_table(summary: MergeSummary) -> Table:
    """Return the table with one row per adapter."""
    rows: list[Row] = []
    count = len(summary.ids)
    for row, name in enumerate(summary.ids):
        others = summary.cosines[row].sum() - summary.cosines[row, row]
        cosine = float(others) / (count - 1) if count > 1 else None
        rows.append((str(name), float(summary.weights[row]), float(summary.norms[row]), cosine))
    return Table(("adapter", "weight", "norm", "cosine"), tuple(rows), (None, 4, 4, 3))


def describe_merge(summary: MergeSummary, lora: str) -> list[str]:
    """Return what a reader should know of a merge, in sentences."""
    count = len(summary.ids)
    sentences = [
        f"{summary.effective:.1f} effective adapters of {count}; the exact merge is "
        f"{summary.length:.2f} times as long as an adapter is on average."
    ]
    if count > 1 and summary.mean_cosine < FEW_IN_COMMON:
        sentences.append(
            f"The adapters have little in common (mean cosine {summary.mean_cosine:.2f}): each acts "
            "with about its weight only. Try the merged adapter before you trust it."
        )
    elif count > 1:
        sentences.append(f"Mean cosine between adapters: {summary.mean_cosine:.2f}.")
    if summary.error > 1e-6:
        worst = max(summary.errors, key=summary.errors.__getitem__)
        sentences.append(
            f"lora={lora} is {summary.error:.1%} off the exact merge, at most "
            f"{summary.errors[worst]:.1%}, in {worst.removeprefix(PREFIX)}. lora=stack is exact."
        )
    else:
        sentences.append("What was written is the exact merge.")
    return sentences


def build_adapter_report(
    summary: MergeSummary,
    rule: str,
    lora: str,
    paths: Sequence[str | Path],
    out: str | Path,
    page: str | Path,
) -> Report:
    """Return the page of a merge.

    Args:
        summary: the merge.
        rule: the rule as text.
        lora: the option `lora`.
        paths: the directories of the adapters.
        out: the merged directory.
        page: the file of the page, for the command that writes it again.
    """
    names = tuple(str(name) for name in summary.ids)
    cosines = tuple(tuple(map(float, row)) for row in summary.cosines)
    cosine_rows: list[Row] = [(name, *row) for name, row in zip(names, cosines, strict=True)]
    norms = tuple(tuple(map(float, row)) for row in summary.module_norms)
    layers = tuple(name.removeprefix(PREFIX) for name in summary.modules)
    modules = tuple(name.removeprefix(PREFIX) for name in summary.errors)
    norm_rows: list[Row] = [(layer, *row) for layer, row in zip(layers, norms, strict=True)]
    errors = tuple(summary.errors.values())
    figures = (
        Figure(
            "cosines",
            "Cosines between adapters",
            "At 1, two adapters change the weights in the same direction; at 0 they have nothing in "
            "common, and at -1 one undoes the other.",
            "Agreement between adapters",
            "adapter",
            "adapter",
            Table(("adapter", *names), tuple(cosine_rows)),
            z="cosine",
            heats=(Heat("", names, names, cosines),),
            palette="diverging",
        ),
        Figure(
            "norms",
            "Where each adapter acts",
            "The norm of each adapter's change of each module.",
            "Agreement between adapters",
            "adapter",
            "module",
            Table(("module", *names), tuple(norm_rows)),
            z="norm",
            heats=(Heat("", layers, names, norms),),
            zero=True,
        ),
        Figure(
            "errors",
            "Error of each module",
            "Distance of the merged adapter from the exact merge, as a share of the exact merge.",
            "What the merge lost",
            "module",
            "error",
            Table(("module", "error"), tuple(zip(modules, errors, strict=True))),
            bars=(Bars("error", 0, errors),),
            categories=modules,
        ),
    )
    command = ["steelyard", "merge", "--adapters", *map(str, paths)]
    command += ["--rule", rule, "--lora", lora, "-o", str(out), "--force", "--report", str(page)]
    return Report(
        title=f"Merge of {len(names)} LoRA adapters",
        facts=(("rule", rule), ("lora", lora), ("modules", str(len(modules))), ("to", str(out))),
        notes=tuple(describe_merge(summary, lora)),
        summary=make_adapter_table(summary),
        figures=figures,
        configuration=(),
        environment=(("page made by", f"steelyard {__version__}"),),
        command=shlex.join(command),
        hint=_HINT,
    )
