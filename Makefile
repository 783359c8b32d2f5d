# Everything a newcomer needs: make setup, make demo, make test. The rest is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# One more than there are cores: tests of federations wait for each other's processes.
TESTERS ?= 3
MINUTES ?= 60
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# A worker runs all tests of a group, which share costly fixtures (group_of in tests/conftest.py).
SPREAD := --dist loadscope --no-loadscope-reorder
# What make test runs.
SELECTED := -m "not slow and not browser and not long"
N ?= 20
QUICK := $(addprefix tests/,base data datasets faces federation metrics nn recipe render)
# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs notebooks setup demo test test-all coverage quick test-slow test-wheel test-dependencies test-processors test-ray distributed faults soak soak-tests hostile web browser lint reference calibrate benchmark wheel release-check clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/fedvisage demo --resume

# Shows that everything works: every method trains, a federation of processes
# gives the bytes of one process, bad input is refused. Most tests of more than 0.7 seconds have the marker long and are left to test-all.
test: setup
	$(PYTEST) -n $(TESTERS) $(SPREAD) $(SELECTED)
	@echo "left out: most tests of more than 0.7 seconds (make test-all), tests marked slow (make test-slow: detector on rendered faces, every study at smoke size, full-size transformers, the wheel in an environment of its own, methods and models that share their code with another one), make browser (the page in Chromium, after make web), make test-processors (the same tests as other processors would compute), make distributed (every method through NVFlare), make test-ray (two nodes of a Ray cluster), make calibrate, make benchmark"

# All that make test runs, and the tests that take more than 0.7 seconds.
test-all: setup
	$(PYTEST) -n $(TESTERS) $(SPREAD) -m "not slow and not browser"

# The lines of the package that `make test` runs in its own processes, and a page per file in build/coverage/html.
coverage: setup
	mkdir -p build/coverage
	$(PYTEST) -n $(TESTERS) $(SPREAD) $(SELECTED) --cov --cov-report=term:skip-covered --cov-report=html

# The loop while writing: the tests of the packages that compute, without those that run whole recipes or processes.
quick: setup
	$(PYTEST) -n $(WORKERS) $(SPREAD) $(SELECTED) $(QUICK)

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not distributed and not browser and not ray"

test-wheel: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" tests/test_wheel.py

# Fetches the lowest and the newest versions that pyproject.toml allows; DEPENDENCIES="--only lowest" tests one end.
test-dependencies: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.dependencies $(DEPENDENCIES)

# PROCESSORS="--settings avx2/AVX2/1 tests/tasks/pad/adapt" tries one setting and one directory.
test-processors: setup
	$(BIN)/python -m tests.processors --workers $(WORKERS) $(PROCESSORS)

# N runs of make test with N base seeds, in random order; continued where it stopped, with results in build/soak.
# SOAK_TESTS="--first 10" begins with base seed 10, to divide the runs between machines.
soak-tests: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak --runs $(N) $(SOAK_TESTS) -- $(SPREAD) $(SELECTED)

faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.distributed.faults

# HOSTILE="uploads --count 500" tries some cases of one kind; --minutes, --share and --replay are others of its options.
hostile: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m campaigns.hostile --workers $(WORKERS) $(HOSTILE)

# MINUTES=10 for a short one, SOAK="--seed 1 --keep DIR" for other faults and for its logs, SOAK="--calm --no-table" for no faults.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m campaigns.soak --minutes $(MINUTES) $(SOAK)

# What computes in the browser page: three files from npm, which are compared with the digests in the package.
web: setup
	$(BIN)/fedvisage web fetch

# Skipped where there is no Chromium, or before `make web`.
browser: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/device/web

# Two nodes on this machine; needs `pip install ".[ray]"`, and is skipped without it.
test-ray: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/ray

distributed: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m distributed tests/distributed

lint: setup
	$(BIN)/ruff check src tests campaigns benchmarks docs deploy examples
	$(BIN)/ruff format --check src tests campaigns benchmarks docs deploy examples
	$(BIN)/mypy

# Into build/site, to be opened as build/site/index.html; nothing is fetched.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m docs.website.check build/site

# Executes the notebooks and writes their outputs into them; NOTEBOOKS="--check 04-a-curious-server" writes nothing.
notebooks: setup
	$(BIN)/python -m docs.website.execute $(NOTEBOOKS)

reference: setup
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/keys.py
	$(BIN)/python docs/drawings.py
	$(BIN)/python -m docs.recording

calibrate: setup
	$(BIN)/python -m benchmarks.calibrate

benchmark: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

wheel: setup
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

# RELEASE=--fetch installs dependencies from the package index, as users do.
release-check: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.release $(RELEASE)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
