PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-properties test-slow test-gpu calibration refinement lint lock clean

demo: .venv/installed          ## set up and run the main job
	$(BIN)/levelfield compare

test: .venv/installed-dev lint ## set up and run the tests
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 2 --dist loadfile

test-properties: .venv/installed-dev ## test properties with new random examples
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile fresh -n 2

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/installed-dev
	$(BIN)/python -m pytest -m gpu

calibration: .venv/installed   ## how often claims and intervals are wrong; POOLS=DIR adds other people's trials
	$(BIN)/python benchmarks/calibration.py $(if $(POOLS),--pools "$(POOLS)")

refinement: .venv/installed    ## how well refine recovers from bad search spaces; ARGUMENTS="--cases 1" and others
	$(BIN)/pip install --quiet --disable-pip-version-check optuna
	$(BIN)/python benchmarks/refinement.py $(ARGUMENTS)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The lock file pins every version; pyproject.toml only states which versions the project works with.
.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	touch $@

# Layers are tested against PyTorch if its CPU build is available; the default build includes gigabytes of CUDA.
.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[dev]"
	-$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock "torch==2.13.0+cpu"
	touch $@

lock:                          ## update requirements.lock (needs uv)
	uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra dev --no-header --no-annotate \
		--output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .cache build dist src/*.egg-info
