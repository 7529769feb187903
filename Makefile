# Every target sets up what it needs: a virtual environment in .venv, made again when pyproject.toml changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-full lint format bench clean

SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(python) -c '$(SUPPORTED)' 2>/dev/null && echo $(python))))
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

help:
	@echo 'make demo       train a small network, watch it live    ARGS="--help" lists its options'
	@echo 'make test       lint, types, import rules, tests        ARGS="-k name" goes to pytest'
	@echo 'make test-full  make test, with many more examples of each property'
	@echo 'make lint       ruff, mypy, import-linter'
	@echo 'make format     format the code, fix what ruff can fix'
	@echo 'make bench      benchmarks                              ARGS="--quick dispatch"'
	@echo 'make clean      delete the virtual environment and all caches'

demo: $(VENV)/.ready-demo
	@exec $(BIN)/actorflow demo $(ARGS)

test: lint $(VENV)/.ready-browser
	$(BIN)/python -m pytest --cov $(ARGS)

test-full: lint $(VENV)/.ready-browser
	ACTORFLOW_FULL_TESTS=1 $(BIN)/python -m pytest --cov $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.ready-bench
	@exec $(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp, not bin/python: an interrupted `venv` leaves an interpreter without pip behind.
$(VENV)/.ready-venv:
	@test -n "$(PYTHON)" || { echo 'actorflow needs Python 3.11 or newer, found none: install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -c '$(SUPPORTED)' || { echo 'actorflow needs Python 3.11 or newer; $(PYTHON) is older' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); echo 'no virtual environment could be made; on Debian: apt-get install python3-venv' >&2; exit 1; }
	@touch $@

$(VENV)/.ready-%: pyproject.toml | $(VENV)/.ready-venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/.ready-browser: tools/install-browser $(VENV)/.ready-dev
	tools/install-browser
	@touch $@
