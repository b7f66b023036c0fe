# Everything runs in .venv. `make demo` and `make test` need only Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := pip install --quiet --disable-pip-version-check
PIP := $(BIN)/$(INSTALL) -c constraints.txt
# pip builds packages in environments of their own, which read this variable and not -c.
export PIP_CONSTRAINT := constraints.txt
# Developers may keep big data sets beside the repository; tests that need them skip where there are none.
ifneq ($(wildcard ../shared/data),)
export STEELYARD_DATA ?= $(abspath ../shared/data)
endif

.PHONY: setup constraints demo test-fast test test-slow test-flower bench bench-peers lint format docs dist clean

setup: $(VENV)/.dev

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e ".[dev,docs]"
	touch $@

constraints:           ## pin what pip installs today; run the tests before you commit the new pins
	rm -rf .venv-pins
	$(PYTHON) -m venv .venv-pins
	PIP_CONSTRAINT= .venv-pins/bin/$(INSTALL) -c constraints.in -e ".[dev,docs]"
	( cat constraints.in && .venv-pins/bin/pip freeze --exclude-editable | grep -v '^torch==' ) > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-pins

demo: setup            ## six algorithms on the embedded digits; leaves runs and a report in out/demo
	$(BIN)/python examples/demo.py

# Files that together take under 60 s on two idle cores and touch every package; measured as CPU time, file by file.
FAST := \
	tests/core tests/test_api.py tests/test_metrics.py tests/test_wheel.py tests/test_testing.py \
	tests/rules/test_chains.py tests/rules/test_combinators.py tests/rules/test_golden_papers.py \
	tests/rules/test_guard_cost.py \
	tests/client/test_terms.py tests/server/test_optimizers.py tests/server/test_probe.py \
	tests/stores/test_memory.py tests/stores/test_safetensors.py \
	tests/recorder/test_summary.py tests/recorder/test_following.py \
	tests/datasets/test_dataset.py tests/datasets/test_partitions.py \
	tests/models/test_models.py::test_options_are_those_a_user_gives tests/models/test_models.py::test_text_form \
	tests/models/test_models.py::test_refused tests/models/test_models.py::test_the_mlp_is_a_plain_sequence \
	tests/sim/test_told.py tests/sim/test_target.py tests/sim/test_parts.py tests/sim/test_foreign_files.py \
	tests/experiments/test_statistics.py tests/experiments/test_scores.py tests/experiments/test_tables.py \
	tests/diagnostics/test_weights.py tests/diagnostics/test_coherence.py tests/diagnostics/test_distances.py \
	tests/figures/test_framework.py::test_a_verdict_follows_from_its_checks \
	tests/figures/test_framework.py::test_differences_hold_only_beyond_noise \
	tests/figures/test_framework.py::test_numbers_of_a_drawing_have_intervals_bars_and_images \
	tests/report/test_gather.py tests/flower/test_records.py tests/cli/test_cli.py

test-fast: setup       ## after every edit; `make test` before a pull request
	$(BIN)/python -m pytest -n 2 --dist loadfile $(FAST)

test: setup            ## in two processes; a file's tests stay together
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -m slow

FLOWERS := $(foreach version,1.31 1,.venv-flower/$(version)/.done) # the oldest we support, and the newest there is

.venv-flower/%/.done: pyproject.toml constraints.in
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	PIP_CONSTRAINT= $(@D)/bin/$(INSTALL) -c constraints.in -e ".[cli,report]" "flwr==$*.*" hypothesis pytest
	touch $@

test-flower: $(FLOWERS) ## the adapter on the oldest and the newest Flower, each in a venv of its own
	for done in $^; do $$(dirname $$done)/bin/python -m pytest -m "slow or not slow" tests/flower || exit 1; done

bench: setup           ## tables on the screen, JSON in out/
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.merge
	$(BIN)/python -m benchmarks.lora
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.probe
	$(BIN)/python -m benchmarks.flower
	$(BIN)/python -m benchmarks.report

PEERS := $(foreach peer,flower pfl fedjax,.venv-peers/$(peer)/.done)

.venv-peers/%/.done: benchmarks/peers/%.txt # asks pip first what it would install: no peer is worth gigabytes of CUDA
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	! PIP_CONSTRAINT= $(@D)/bin/pip install --quiet --dry-run --report - -r $< | grep -iqE '"name": "(nvidia-|cuda-|triton)'
	PIP_CONSTRAINT= $(@D)/bin/$(INSTALL) -r $<
	touch $@

bench-peers: setup $(PEERS) ## Flower, pfl and FedJAX beside us, each in a venv of its own; half an hour
	$(BIN)/python -m benchmarks.peers

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

dist: setup            ## source distribution and wheel in dist/
	rm -rf dist
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .venv-peers .venv-flower .venv-pins out site build dist *.egg-info
