"""Hashes of functions and objects with their settings, which distinguish one loss from another.

The name of a loss is not enough: `nn.CrossEntropyLoss()` with and without class weights have the
same name, and so have all lambdas of one function. The hash covers what a call depends on: options,
tensors, the code of functions that do not belong to a library, their closures, and the global values
that they read.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_LIBRARIES = {"torch", "numpy", "steelyard"}  # identified by name and version
_TRANSIENT = {"training"}  # attributes of modules that are not settings
_MAX_VALUES = 100_000  # values of one object: more are not looked at


def fingerprint(value: Any) -> str | None:
    """Return the SHA-256 of a function or object and its settings.

    None for a function of a library, whose name is enough.
    """
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) and _is_of_library(
        value
    ):
        return None
    digest = hashlib.sha256()
    for count, part in enumerate(_describe_value(value, {})):
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
        if count >= _MAX_VALUES:
            break
    return digest.hexdigest()


def hash_code(module: nn.Module) -> str | None:
    """Return the SHA-256 of the code of a network's classes; None if all belong to libraries."""
    own = {type(part) for part in module.modules() if not _is_of_library(type(part))}
    if not own:
        return None
    digest = hashlib.sha256()
    for kind in sorted(own, key=_qualified_name):
        for part in _describe_class(kind, None):
            digest.update(part.encode() if isinstance(part, str) else part)
            digest.update(b"\0")
    return digest.hexdigest()


def _qualified_name(value: Any) -> str:
    return (
        f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    )


def _is_of_library(value: Any) -> bool:
    top = (getattr(value, "__module__", None) or "builtins").partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _describe_value(value: Any, numbers: dict[int, int]) -> Iterator[str | bytes]:
    """Yield what distinguishes a value from others, piece by piece.

    Args:
        value: the value.
        numbers: numbers of the objects so far, by identity. An object that occurs again is
            described by its number.
    """
    # Plain values are their text.
    if value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    ):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in numbers:
        yield f"again {numbers[id(value)]}"
        return
    numbers[id(value)] = len(numbers)
    # Arrays are their bytes.
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield f"tensor {value.dtype} {tuple(value.shape)}"
        yield flat.numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"array {value.dtype} {value.shape}"
        yield value.tobytes()
    # Containers are their items.
    elif isinstance(value, Mapping):
        yield f"map {len(value)}"
        for key, item in value.items():
            yield from _describe_value(key, numbers)
            yield from _describe_value(item, numbers)
    elif isinstance(value, (list, tuple)):
        yield f"list {len(value)}"
        for item in value:
            yield from _describe_value(item, numbers)
    elif isinstance(value, (set, frozenset)):
        yield f"set {sorted(map(repr, value))}"
    # Functions are their code, and what it refers to.
    elif isinstance(value, functools.partial):
        yield "partial"
        yield from _describe_value((value.func, value.args, value.keywords), numbers)
    elif isinstance(value, types.MethodType):
        yield "method"
        yield from _describe_value((value.__self__, value.__func__), numbers)
    elif isinstance(value, types.FunctionType):
        yield f"function {_qualified_name(value)}"
        if not _is_of_library(value):
            yield from _describe_function(value, numbers)
    elif isinstance(value, type):
        yield f"class {_qualified_name(value)}"
        if not _is_of_library(value):
            yield from _describe_class(value, numbers)
    elif isinstance(value, types.ModuleType) or not hasattr(value, "__dict__"):
        yield f"{type(value).__name__} {_qualified_name(value)}"
    # Other objects are their class and their attributes.
    else:
        yield from _describe_value(type(value), numbers)
        for name, item in sorted(vars(value).items()):
            if name not in _TRANSIENT and not (name.endswith("_hooks") and not item):
                yield f"attribute {name}"
                yield from _describe_value(item, numbers)


def _describe_class(kind: type, numbers: dict[int, int] | None) -> Iterator[str | bytes]:
    """Yield descriptions of the functions of a class and its bases.

    Args:
        kind: the class.
        numbers: as for `_describe_value`; None to leave out the values that functions refer to.
    """
    for base in kind.__mro__:
        if _is_of_library(base):
            continue
        yield f"class {_qualified_name(base)}"
        for name, item in sorted(vars(base).items()):
            function = item.__func__ if isinstance(item, (staticmethod, classmethod)) else item
            if isinstance(function, types.FunctionType):
                yield f"function {name}"
                yield from (
                    _describe_code(function.__code__)
                    if numbers is None
                    else _describe_function(function, numbers)
                )
            elif numbers is not None and not name.startswith("__"):
                yield f"value {name}"
                yield from _describe_value(item, numbers)


def _describe_function(
    function: types.FunctionType, numbers: dict[int, int]
) -> Iterator[str | bytes]:
    """Yield the code of a function, its defaults, its closure and the globals that it reads."""
    yield from _describe_code(function.__code__)
    yield from _describe_value((function.__defaults__, function.__kwdefaults__), numbers)
    for cell in function.__closure__ or ():
        try:
            yield from _describe_value(cell.cell_contents, numbers)
        except ValueError:  # not filled yet
            yield "empty"
    for name in sorted(_find_names(function.__code__)):
        if name in function.__globals__:
            yield f"global {name}"
            yield from _describe_value(function.__globals__[name], numbers)


def _describe_code(code: types.CodeType) -> Iterator[str | bytes]:
    """Yield what code does, without its position; constants may be the code of inner functions."""
    yield code.co_code
    yield " ".join((*code.co_names, *code.co_varnames, *code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _describe_code(constant)
        elif isinstance(constant, frozenset):  # of no order
            yield f"set {sorted(map(repr, constant))}"
        else:
            yield f"{type(constant).__name__} {constant!r}"


def _find_names(code: types.CodeType) -> set[str]:
    """Return the names that code and its inner functions read."""
    inner = [
        _find_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return set(code.co_names).union(*inner)
