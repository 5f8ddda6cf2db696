# On a machine with only Python >= 3.11:
#   make demo    install, analyse two samples, show the results
#   make test    install what tests need, check style, types and imports, run the tests (more cases: make nightly)
#   make coverage  the tests with line and branch coverage of the package; fails below fail_under in pyproject.toml
#   make nightly the cases that `make test` leaves out because they take too long
#   make quick   style and the fast tests, while you write
#   make release   build the source archive and wheels, try them on every Python that is here, say what is left to do
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Without compiling every module of every package: Python compiles what is imported, and keeps it. Groups of dependencies need
# pip 25.1, the package itself takes the pip that comes with Python.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
# Compiled modules are kept whatever the environment says: else every worker and every command that a test starts
# compiles them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test run-tests quick nightly lint style types format clean coverage fuzz fuzz-checked faults covering mutants docs proof \
	release

# Compiled loops are built again when their sources change.
$(VENV)/.installed: pyproject.toml setup.py build_backend.py $(wildcard tracekit/_loops/*.py tracekit/_loops/*.pxd)
	$(PYTHON) -c 'import sys; sys.exit("tracekit needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	$(INSTALL) --upgrade 'pip>=25.1'
	$(INSTALL) --group dev
	touch $@

demo: $(VENV)/.installed
	$(BIN)/tracekit demo -o demo
	@echo "Open demo/h100-ddp.html and demo/1f1b.html for the same as pages."

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python ci/lint_source.py

types: $(VENV)/.installed-dev
	$(BIN)/mypy

lint: style types

# A file's tests run in one worker: what they share is made once. Workers share the cores, so that one thread each is enough.
PYTEST := POLARS_MAX_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Types are checked beside the tests: mypy and they take minutes, what comes first seconds.
test: style
	$(MAKE) --jobs=2 types run-tests

run-tests: $(VENV)/.installed-dev
	$(PYTEST)

# Style and the tests that are not marked slow: about a minute on two cores, for while you write.
quick: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(PYTEST) -m "not slow and not nightly"

# More cases of what the tests show, which take too long for every change; names each that it runs.
nightly: $(VENV)/.installed-dev
	$(PYTEST) -vv -m nightly

$(VENV)/.installed-coverage: $(VENV)/.installed-dev pyproject.toml
	$(INSTALL) --group coverage
	touch $@

# The whole suite with coverage; the compiled loops are omitted, because coverage cannot trace compiled code.
coverage: $(VENV)/.installed-coverage
	$(PYTEST) --cov --cov-report=term:skip-covered

# Inputs nobody wrote, for SECONDS; each follows from SEED and its number. What fails is kept in tests/fuzz/found.
SECONDS ?= 3600
SEED ?= $(shell date +%Y%m%d)
fuzz: $(VENV)/.installed-dev
	POLARS_MAX_THREADS=1 nice -n 19 $(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) --seed $(SEED) --jobs $(JOBS)

# The same for the scanner of PyTorch traces, with all bounds checks and the address sanitizer; restores the usual build.
fuzz-checked: $(VENV)/.installed-dev
	TRACEKIT_CHECKED=1 $(BIN)/python setup.py -q build_ext --inplace --force
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 POLARS_MAX_THREADS=1 \
		$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) --seed $(SEED) --target scan --target kineto; \
	status=$$?; $(BIN)/python setup.py -q build_ext --inplace --force; exit $$status

# Kills, full disks and files that go away: KILLS of each, three times in a row.
KILLS ?= 50
faults: $(VENV)/.installed-dev
	for again in 1 2 3; do TRACEKIT_KILLS=$(KILLS) $(BIN)/pytest -q tests/faults -m "" -o timeout=3600 || exit 1; done

# Which tests reach which lines: `make mutants` runs those first. Takes as long as the tests; the fast ones are enough.
covering: $(VENV)/.installed-coverage
	rm -rf build/mutants/covering
	POLARS_MAX_THREADS=1 $(BIN)/pytest -q -p tests.covering --covering build/mutants/covering -m "not slow and not nightly"

# COUNT constants, comparisons and branches changed, one at a time, drawn by SEED: do the tests notice?
COUNT ?= 40
mutants: $(VENV)/.installed-coverage $(if $(wildcard build/mutants/covering),,covering)
	nice -n 19 $(BIN)/python -m benchmarks.mutants --seed $(SEED) --count $(COUNT) --jobs $(JOBS)

$(VENV)/.installed-docs: $(VENV)/.installed pyproject.toml
	$(INSTALL) --upgrade 'pip>=25.1'
	$(INSTALL) --group docs
	touch $@

# The documentation site, in build/site/html. A warning (a link that leads nowhere, say) is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m docsite build/site
	cd build/site && $(abspath $(BIN))/zensical build --strict --clean

# Published results beside tracekit's own, in docs/proof.md; fails where one differs by more than it promises.
proof: $(VENV)/.installed-dev
	$(BIN)/python -m docsite.proof

# Needs no $(VENV). PYTHONS names interpreters that are neither on the path nor known to pyenv or uv.
PYTHONS ?=
release:
	$(PYTHON) ci/release.py $(PYTHONS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build tracekit/_loops/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
