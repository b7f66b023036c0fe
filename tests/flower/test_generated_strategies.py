"""The generated strategies are current, and editors and type checkers see their options."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

import steelyard.flower
from steelyard.core._registry import UNSET
from steelyard.flower import _generate_strategies as generator
from steelyard.flower._strategy import Steelyard

SOURCE = generator.PATH.read_text(encoding="utf-8")
CLASSES = {node.name: node for node in ast.parse(SOURCE).body if isinstance(node, ast.ClassDef)}
PARTS = {name: part for name, part in generator.find_parts().items() if part[1].is_builtin}


def test_the_file_is_current():
    assert generator.generate() == SOURCE, "run python -m steelyard.flower._generate_strategies"


def test_every_part_and_every_composition_has_a_class():
    assert CLASSES.keys() == {*PARTS, "Recommended"}
    strategy = steelyard.flower.Recommended(guard=False, seed=3)
    assert strategy.algorithm == steelyard.recommended()
    assert strategy.seed == 3
    assert "Recommended" in dir(steelyard.flower)


@pytest.mark.parametrize("name", PARTS)
def test_the_source_has_the_options_of_the_part_and_of_the_strategy(name):
    """What a type checker reads is what Python calls: nothing is set at run time."""
    (init,) = (node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in (*init.args.args, *init.args.kwonlyargs)]
    assert init.args.kwarg is None
    _, entry = PARTS[name]
    strategy_class = getattr(steelyard.flower, name)
    assert "__signature__" not in vars(strategy_class)
    parameters = inspect.signature(strategy_class.__init__).parameters
    assert list(parameters) == names
    expected = set(inspect.signature(Steelyard.__init__).parameters) - {"algorithm"}
    assert expected | entry.options.keys() <= set(names)
    for option, parameter in entry.options.items():
        assert parameters[option].default == parameter.default
        assert (parameters[option].default is UNSET) == (parameter.default is UNSET)
        assert parameters[option].annotation == parameter.annotation


def test_type_checkers_find_them_in_the_package():
    tree = ast.parse(Path(steelyard.flower.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = {node.module: [name.name for name in node.names] for node in checked.body}
    assert imports["steelyard.flower._strategies"] == ["*"]


@pytest.mark.slow
def test_mypy_knows_the_options(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(Path(steelyard.__file__).parents[1]))
    file = tmp_path / "app.py"
    file.write_text(
        textwrap.dedent(
            """
            from steelyard.flower import FedAdp

            FedAdp(0.5, alpha=3.0, out="runs/a")
            FedAdp(alpha="high")
            FedAdp(alfa=1.0)
            """
        )
    )
    output, _, _ = api.run([str(file), "--cache-dir", str(tmp_path / "cache")])
    errors = [line for line in output.splitlines() if f"{file.name}:" in line and "error" in line]
    assert len(errors) == 2, output
    assert '"alpha"' in errors[0]
    assert '"alfa"' in errors[1]
