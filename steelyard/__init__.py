"""Steelyard: adaptive aggregation for federated learning.

out = steelyard.aggregate("fedawa", base, clients, metrics={"num_examples": sizes})
out.params, out.weights, out.state, out.report

The names are those of `steelyard.public`, which is imported when the first of them is touched: a
part of the package, such as the command line, can be imported without all the others, and without
torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from steelyard._version import __version__ as __version__

if TYPE_CHECKING:
    from steelyard.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if not name.startswith("_") and find_spec(f"steelyard.{name}") is not None:
            return import_module(f"steelyard.{name}")
        public = import_module("steelyard.public")
        names = {key: value for key, value in vars(public).items() if not key.startswith("_")}
        globals().update(names, __all__=[*names])
        if name not in globals():
            raise AttributeError(f"module 'steelyard' has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
