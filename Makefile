# `make demo` and `make test` set up whatever they need in .venv; nothing is installed by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint soak clean
demo: $(VENV)/.runtime
	$(BIN)/python tools/demo.py

test: lint
	$(BIN)/python -m pytest -n 2

# Ten minutes of mixed load on the demo's server; not part of the suite.
soak: $(VENV)/.dev
	SOAK_SECONDS=600 $(BIN)/python -m pytest -m soak tests/server

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) --editable ".[dev,oracles]"
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
