# Every target sets itself up from a bare Python >= 3.11: the first run creates .venv, later runs reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= results
JOBS ?= 2

# JAX's small factorisations are many times slower when OpenBLAS spreads them over busy cores.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
# jaxlib waits for batched LAPACK calls inside the thread pool that runs them; on two cores two such calls
# at once wait for ever. A pool of four threads keeps one free.
export NPROC ?= 4

# The newest JAX needs a newer Python than the oldest that is supported.
NEWEST ?= $(shell command -v python3.14 || command -v python3.13 || command -v python3.12)
OLDEST ?= $(shell command -v python3.11 || echo $(PYTHON))

.PHONY: help setup test test-slow test-newest test-oldest lint reproduce bench docs tutorials dist clean

help:
	@echo "make reproduce   the main job: run the studies and draw their pictures (into $(OUT)/)"
	@echo "make test        lint, types and tests: the whole check"
	@echo "make test-slow   the longer checks that 'make test' leaves out"
	@echo "make test-newest the tests but for NetKet's on the newest JAX, with a Python >= 3.12 (NEWEST=path)"
	@echo "make test-oldest the same on the oldest JAX and dependencies, with a Python 3.11 (OLDEST=path)"
	@echo "make lint        ruff and basedpyright alone"
	@echo "make bench       the benchmarks, each beside its baseline in one run"
	@echo "make docs        the documentation as a site, into site/; a warning is an error"
	@echo "make tutorials   run the tutorials whose code has changed (TUTORIALS=all: all) and store what they print and draw"
	@echo "make dist        sdist and wheel, into dist/, tried in a fresh environment"
	@echo "make clean       remove .venv and build outputs"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,netket,molecules,cluster,docs]'
	@touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error

test: lint
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal

# Programs are compiled here as users compile them; `make test` takes the plainest machine code, which is quicker.
test-slow: export XLA_FLAGS =
test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal tests/linalg tests/structure tests/operators \
		tests/methods tests/pinn

# As users compile them: what computes. The rest of the tests, but for NetKet's, takes the plainest machine code.
NUMERICAL := tests/structure tests/operators tests/methods tests/linalg tests/training tests/pinn tests/sampling
OTHERS := tests --ignore=tests/netket_room $(addprefix --ignore=,$(NUMERICAL))
# The lowest versions that pyproject.toml allows.
OLDEST_PINS = sed -n '/^dependencies/,/^]/s/^ *"\([a-z]*\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml

test-newest:
	@test -n "$(NEWEST)" || { echo "no Python >= 3.12 found: name one with NEWEST=path"; exit 2; }
	@test -x $(VENV)-newest/bin/python || $(NEWEST) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[test,molecules,cluster]'
	$(VENV)-newest/bin/python -m pip list 2>/dev/null | grep -E "^jax"
	XLA_FLAGS= $(VENV)-newest/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal $(NUMERICAL)
	$(VENV)-newest/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal $(OTHERS)

test-oldest:
	@test -x $(VENV)-oldest/bin/python || $(OLDEST) -m venv $(VENV)-oldest
	$(OLDEST_PINS) > $(VENV)-oldest/pins.txt
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,molecules,cluster]' \
		--constraint $(VENV)-oldest/pins.txt
	$(VENV)-oldest/bin/python -m pip list 2>/dev/null | grep -E "^jax"
	XLA_FLAGS= $(VENV)-oldest/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal $(NUMERICAL)
	$(VENV)-oldest/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal $(OTHERS)

reproduce: $(STAMP)
	$(BIN)/snapgrad reproduce --out $(OUT)

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The theme advertises its successor on every build.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

tutorials: $(STAMP)
	$(BIN)/python docs/_site/tutorials.py $(TUTORIALS)

dist: $(STAMP)
	rm -rf dist $(VENV)-dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	$(VENV)-dist/bin/python tests/try_wheel.py dist/*.whl

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-oldest $(VENV)-dist build dist site .pytest_cache .ruff_cache .hypothesis
