# Everything runs in .venv. `make demo` and `make test` need only Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-slow bench lint format docs clean

setup: $(VENV)/.dev

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.flower: $(VENV)/.dev
	$(PIP) -e ".[dev,flower]"
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e ".[dev,docs]"
	touch $@

demo: setup            ## five algorithms on the embedded digits; leaves runs and a report in out/demo
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

bench: $(VENV)/.flower ## tables on the screen, JSON in out/
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.merge
	$(BIN)/python -m benchmarks.simulator

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) out site build *.egg-info
