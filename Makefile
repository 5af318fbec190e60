# Every target does its own set-up: a machine with Python and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
REQUESTS ?= 20000
# Tests start hundreds of processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up test test-slow test-pythons torture soak lint bench fuzz venv clean zoo
.DEFAULT_GOAL := test

venv: $(VENV)/.installed-dev

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kedge needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

# Tests, linters and peers of the benchmarks, into the same environment. `make up` needs none of them.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

up: $(VENV)/.installed
	$(BIN)/kedge up --demo

test: venv
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not soak"

test-slow: venv
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m slow

# Types, a quick suite and equal traces on every other Python of pyenv. Prints the versions that it did not find.
test-pythons: venv
	JOBS=$(JOBS) $(BIN)/python -m tests.pythons

torture: venv
	$(BIN)/python -m tests.torture

soak: venv
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m soak

fuzz: venv
	$(BIN)/python -m tests.fuzz --requests $(REQUESTS)

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.simulation
	$(BIN)/python -m benchmarks.runtime
	$(BIN)/python -m benchmarks.observe
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.http
	$(BIN)/python -m benchmarks.rewind
	for shape in basic spread node-affinity anti-affinity affinity unschedulable churn preemption gang; do \
		$(BIN)/python -m benchmarks.scheduler --shape $$shape || exit 1; done

zoo: venv
	$(BIN)/kedge zoo --jobs $(JOBS) --seeds 2000 --clean 10000 --compare 10

clean:
	rm -rf $(VENV) .pythons .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
