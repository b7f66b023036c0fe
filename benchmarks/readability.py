"""Count what makes the code hard to read: `python -m benchmarks.readability [--list]`.

The same counts as in the review that asked for plain language, so that they can be compared over
time.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "steelyard"

# Words that say nothing of a value: participles, pronouns, and adverbs.
ODD_NAMES = frozenset(
    (
        "made found said told given kept held wanted shown asked one ones whole there few place "
        "known seen "
        "taken drawn done gone left put read_ had got sent come begun chosen named meant written "
        "built cut "
        "fixed moved paired planned refused settled sorted_runs stored swept tried used worn "
        "stated spoken "
        "heard felt thought brought bought taught mine theirs ours yours those these other others "
        "another "
        "both each what which who whose how why when where here now then more most less least some "
        "many much "
        "again also apart alike "
    ).split()
)
# Participles that are used as names of functions.
PARTICIPLES = frozenset(
    (
        "told asked named matched settled shown unlike arranged judged made said found given kept "
        "held wanted "
        "known seen taken drawn done gone put sent chosen written built fixed moved paired planned "
        "refused "
        "stored tried used stated resolved validated parsed locked merged rooted noted replaced "
        "reweighted "
        "restricted transformed grouped selected described measured counted checked cleaned quoted "
        "packed "
        "escaped sorted compared gathered listed opened closed smoothed clamped scaled weighted "
        "ranked placed "
        "joined split_up rounded bounded guarded cached copied read_back finished started changed "
        "passed cast "
        "dealt shuffled thinned balanced capped unpacked flattened stacked framed signed sealed "
        "bare left "
        "away widened spelt typed limited dropped trimmed aligned mixed portable finite plain flat "
        "whole "
        "alike fresh due ready present absent lower upper higher "
    ).split()
)


def parse_files(root: Path) -> dict[Path, tuple[str, ast.Module]]:
    """Return the text and the syntax tree of every module."""
    files = {}
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        files[path] = (text, ast.parse(text))
    return files


def variables(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every name that is bound to a value, once per function or module, with its line."""
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
            names: dict[str, int] = {}
            if not isinstance(scope, ast.Module):
                arguments = scope.args
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    names.setdefault(argument.arg, argument.lineno)
            for node in _own_nodes(scope):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.setdefault(node.id, node.lineno)
            yield from names.items()


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of functions within."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield child
        yield from _own_nodes(child)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield every function that is not a property or a magic method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            decorators = {
                getattr(item, "id", getattr(item, "attr", "")) for item in node.decorator_list
            }
            if not decorators & {"property", "cached_property", "setter", "fixture"}:
                yield node


def count_comments(path: Path) -> int:
    """Return how many lines hold nothing but a comment."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return sum(
        token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
        for token in tokens
    )


def count_calls(run: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions of the package a call passes through, and in how many files they are."""
    called: set[tuple[str, int, str]] = set()

    def watch(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and "steelyard" in code.co_filename and not code.co_name.startswith("<"):
            called.add((code.co_filename, code.co_firstlineno, code.co_name))

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(called), len({name for name, _, _ in called})


def aggregate_fedawa() -> Callable[[], object]:
    """Return a second call of `aggregate("fedawa")`: the first one loads modules."""
    import torch

    import steelyard

    base = torch.zeros(100)
    clients = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    metrics = {"num_examples": [1, 2, 3, 4, 5]}

    def run() -> object:
        return steelyard.aggregate("fedawa", base, clients, metrics=metrics)

    run()
    return run


def count_parameters() -> dict[str, int]:
    """Return the number of parameters of the widest signatures."""
    import steelyard
    from steelyard.flower import Steelyard

    widest = {
        "simulate": steelyard.simulate,
        "Flower strategy": Steelyard.__init__,
        "aggregate": steelyard.aggregate,
    }
    return {
        name: sum(parameter != "self" for parameter in inspect.signature(function).parameters)
        for name, function in widest.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every odd name with its place")
    parser.add_argument("--root", type=Path, default=PACKAGE, help="the package to count")
    options = parser.parse_args()
    files = parse_files(options.root)

    # Names.
    names = [
        (name, path, line) for path, (_, tree) in files.items() for name, line in variables(tree)
    ]
    odd = [item for item in names if item[0] in ODD_NAMES]
    defined = [
        (node.name, path, node.lineno)
        for path, (_, tree) in files.items()
        for node in functions(tree)
    ]
    bare = [item for item in defined if item[0].strip("_") in PARTICIPLES]
    if options.list:
        for name, path, line in (*odd, *bare):
            print(f"{path.relative_to(options.root)}:{line}: {name}")
        for kind, items in (("variables", odd), ("functions", bare)):
            print(kind, Counter(name for name, _, _ in items).most_common())

    # Statements.
    nodes = [node for _, tree in files.values() for node in ast.walk(tree)]
    lines = sum(bool(line.strip()) for text, _ in files.values() for line in text.splitlines())
    conditional = [node for node in nodes if isinstance(node, ast.IfExp)]
    nested = [
        node
        for node in conditional
        if any(isinstance(part, ast.IfExp) for part in ast.walk(node.body))
    ]
    nested += [
        node
        for node in conditional
        if any(isinstance(part, ast.IfExp) for part in ast.walk(node.orelse))
    ]
    multiple = [
        node
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ]
    long = sum(len(line) > 100 for text, _ in files.values() for line in text.splitlines())
    short = [path for path, (text, _) in files.items() if len(text.splitlines()) <= 40]
    rows = {
        "variables with odd names": f"{len(odd)} of {len(names)} ({100 * len(odd) / len(names):.1f} %)",
        "functions that are bare participles": str(len(bare)),
        "conditional expressions per 1,000 lines": f"{1000 * len(conditional) / lines:.1f}",
        "nested conditional expressions": str(len({id(node) for node in nested})),
        "tuple assignments per 1,000 lines": f"{1000 * len(multiple) / lines:.1f}",
        "comment lines of their own / code lines": f"{sum(map(count_comments, files))} / {lines}",
        "lines over 100 characters": f"{100 * long / lines:.1f} %",
        "files, of them with 40 lines or fewer": f"{len(files)}, {len(short)}",
    }
    if options.root == PACKAGE:
        widths = count_parameters()
        rows["parameters: " + ", ".join(widths)] = ", ".join(map(str, widths.values()))
        rows['functions (files) on the way of aggregate("fedawa")'] = "{} ({})".format(
            *count_calls(aggregate_fedawa())
        )
    for name, value in rows.items():
        print(f"{name:<60} {value}")


if __name__ == "__main__":
    main()
