PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
COMPILE := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: demo test test-properties test-slow test-gpu faults calibration refinement lint lock clean

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

faults: .venv/installed-dev    ## 1,000 kills, 200 interruptions and 2,000 damaged stores; takes an hour
	FAULTS_KILLS=1000 FAULTS_MOMENTS=200 FAULTS_STORES=2000 $(BIN)/python -m pytest tests/faults -s --timeout 7200

calibration: .venv/installed   ## how often claims and intervals are wrong; POOLS=DIR adds other people's trials
	$(BIN)/python benchmarks/calibration.py $(if $(POOLS),--pools "$(POOLS)")

refinement: .venv/installed    ## how well refine recovers from bad search spaces; ARGUMENTS="--cases 1" and others
	$(INSTALL) optuna
	$(BIN)/python benchmarks/refinement.py $(ARGUMENTS)

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The lock files pin every version with its hashes; pyproject.toml only states which versions the project works with.
# They are complete, so pip must not resolve anything: pip 23 stops at an extra of a pinned package (etils[epath]) as soon
# as a newer version of that package is released.
# An editable install has no hash, so it comes on its own, built by the setuptools that is already installed.
.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(INSTALL) --no-deps --require-hashes --requirement requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# Layers are tested against PyTorch if its CPU build is available; the default build includes gigabytes of CUDA. PyPI
# does not have the CPU build, and each place that does may have its own, so there are no hashes for it.
.venv/installed-dev: .venv/installed requirements-dev.lock
	$(INSTALL) --no-deps --require-hashes --requirement requirements-dev.lock
	-$(INSTALL) "torch==2.13.0+cpu"
	touch $@

lock:                          ## update the lock files (needs uv); requirements.lock is a part of requirements-dev.lock
	echo "setuptools>=77" | $(COMPILE) --extra dev --output-file requirements-dev.lock pyproject.toml -
	echo "setuptools>=77" | $(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml -

clean:
	rm -rf .venv .cache build dist src/*.egg-info
