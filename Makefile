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

.PHONY: help setup test test-slow test-newest lint reproduce bench docs tutorials dist clean

help:
	@echo "make reproduce   the main job: run the studies and draw their pictures (into $(OUT)/)"
	@echo "make test        lint, types and tests: the whole check"
	@echo "make test-slow   the longer checks that 'make test' leaves out"
	@echo "make test-newest the numerical tests on the newest JAX, with a Python >= 3.12 (NEWEST=path)"
	@echo "make lint        ruff and basedpyright alone"
	@echo "make bench       the benchmarks, each beside its baseline in one run"
	@echo "make docs        the documentation as a site, into site/; a warning is an error"
	@echo "make tutorials   run the tutorials and store what they print and draw, for the site"
	@echo "make dist        sdist and wheel, into dist/, tried in a fresh environment"
	@echo "make clean       remove .venv and build outputs"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,netket,molecules,docs]'
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

test-newest: export XLA_FLAGS =
test-newest:
	@test -n "$(NEWEST)" || { echo "no Python >= 3.12 found: name one with NEWEST=path"; exit 2; }
	@test -x $(VENV)-newest/bin/python || $(NEWEST) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[test]'
	$(VENV)-newest/bin/python -m pip list 2>/dev/null | grep -E "^jax"
	$(VENV)-newest/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal \
		tests/structure tests/operators tests/methods/test_golden_steps.py tests/test_identities.py tests/methods/test_conformance.py \
		tests/linalg/test_solve.py tests/training tests/pinn tests/sampling/test_squared_volume.py

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
	$(BIN)/python docs/_site/tutorials.py

dist: $(STAMP)
	rm -rf dist $(VENV)-dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	$(VENV)-dist/bin/python tests/try_wheel.py dist/*.whl

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-dist build dist site .pytest_cache .ruff_cache .hypothesis
