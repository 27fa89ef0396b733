# Everything starts here: `make demo` shows the main job, `make test` proves it. Needs Python 3.11 or newer and make.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_DIR ?= demo-output
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test proofs lint types imports check docs wheel wheel-test bench acceptance clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"make: {sys.executable} is Python {v[0]}.{v[1]}; Equipoise needs 3.11 or newer, e.g. make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing (once) ..."
	@$(PIP) install --editable '.[report]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing the development tools (once) ..."
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --editable '.[all]' --group dev
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml $(VENV)/.dev
	@$(PIP) install --group docs
	@touch $@

demo: $(VENV)/.demo  ## the article's policies on the embedded workload: a table here, a report in demo-output/
	@$(BIN)/equipoise compare --output-dir $(DEMO_DIR)
	@echo
	@echo "Open $(DEMO_DIR)/report.html in a browser; $(DEMO_DIR)/timeline.json in ui.perfetto.dev."

test: $(VENV)/.dev  ## the quick test suite
	@[ -n "$(TESTS)" ] || $(BIN)/python scripts/compile_kernels.py
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(or $(TESTS),-m "not proof")

proofs: $(VENV)/.dev  ## the long tests: real engines, storms of faults, searches held against proven optima
	@$(BIN)/python scripts/compile_kernels.py
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m proof

lint: $(VENV)/.dev  ## style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## static types
	@$(BIN)/mypy

imports: $(VENV)/.dev  ## the rooms import only downward
	@$(BIN)/lint-imports

check: lint types imports test proofs  ## all of these

docs: $(VENV)/.docs  ## the documentation site, into site/
	@$(BIN)/zensical build --clean --strict

wheel: $(VENV)/.dev  ## build the wheel, into dist/
	@rm -rf dist
	@$(BIN)/python -m build --wheel --outdir dist . >/dev/null
	@ls dist

wheel-test: wheel  ## install the wheel into an environment of its own and try it there
	@scripts/wheel-test

bench: $(VENV)/.dev  ## the speed bars of the README
	@$(BIN)/python bench/run.py

acceptance: $(VENV)/.dev  ## the slow proofs: planted costs recovered, measured tables fitted, the article reproduced on real traces
	@$(BIN)/python scripts/calibration_proofs.py acceptance
	@$(BIN)/python scripts/reproduction.py

clean:  ## forget everything that was built
	@rm -rf $(VENV) dist build site $(DEMO_DIR) .pytest_cache .mypy_cache .ruff_cache .hypothesis
