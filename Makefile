# `make help` lists the targets. Each sets up what it needs and says what it installs; once set up, that costs nothing.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install
# Spark comes as a source package. What builds it is pinned too, and installed first instead of into a place of its own.
BUILDERS := packaging\|setuptools\|wheel

.DEFAULT_GOAL := help
.PHONY: help demo bench bench-docs soak test test-newest test-matrix check setup clean clean-all lock
MAKEFLAGS += --no-print-directory

help:
	@echo 'make demo       count real text on RabbitMQ, Redis and Spark, with faults; options: ARGS="--calm"'
	@echo 'make bench      measure it beside its peers, for an hour and a half; QUICK=1: ten minutes; ARGS="--only latency"'
	@echo 'make bench-docs  put its figures and plots into README.md and docs'
	@echo 'make test       lint, types and the whole test suite; some of it: ARGS="tests/unit -k ledger"'
	@echo 'make test-matrix  the integration and fault tests on every version of the servers, in containers'
	@echo 'make soak       ten minutes of random faults; again: ARGS="--soak-seed=1234"'
	@echo 'make check      lint and types'
	@echo 'make clean      remove what runs and tests leave behind'
	@echo 'make clean-all  remove the virtual environment too'
	@echo 'make lock       pin the newest versions of all dependencies in constraints.txt'
	@echo 'Another Python: make clean-all, then PYTHON=python3.12 for the first target.'

demo: $(STAMP)
	@$(BIN)/tiercel demo $(ARGS)

# The peers and the plots have an environment of their own: nothing else needs them, and Celery brings a plugin for pytest.
BENCH := .cache/bench
bench: $(STAMP) $(BENCH)/.complete
	@$(BIN)/python -m bench $(if $(QUICK),--quick) --peers $(BENCH)/bin/python $(ARGS)

bench-docs: $(STAMP) $(BENCH)/.complete
	@$(BIN)/python -m bench --write-docs --peers $(BENCH)/bin/python

$(BENCH)/.complete: bench/constraints.txt
	@echo 'tiercel: installing what the benchmark compares with into $(BENCH)'
	@[ -x $(BENCH)/bin/pip ] || $(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r bench/constraints.txt
	@touch $@

# Two files at a time, for most tests wait more than they work; but the faults alone, for they show how long recovery takes.
test: check
ifeq ($(ARGS),)
	@$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --ignore=tests/faults
	@$(BIN)/python -m pytest tests/faults
	@$(MAKE) test-newest
else
	@$(BIN)/python -m pytest $(ARGS)
endif

# The integration tests again, on servers in containers. Without a Docker engine this says so and passes, but not where CI is set.
ON_REDIS := tests/integration/ledger $(wildcard tests/integration/test_*_contract.py)
test-newest: $(STAMP)
	@$(BIN)/python -m pytest --servers=rabbitmq:4.3,valkey:9.1 tests/integration
	@$(BIN)/python -m pytest --servers=redis:8.0 $(ON_REDIS)

# The faults write their tables there, to be read or put into docs/guarantees.md; the other options of both: pytest --help.
FAULTS := artifacts/faults.md

test-matrix: check
	@rm -f $(FAULTS)
	@for servers in rabbitmq:4.3,valkey:9.1 rabbitmq:4.0,redis:8.0 rabbitmq:3.10,redis:7.0; do \
		$(BIN)/python -m pytest --slow --fault-report=$(FAULTS) --servers=$$servers $(or $(ARGS),tests/integration tests/faults) || exit 1; \
	done

soak: check
	@$(BIN)/python -m pytest -s --soak-minutes=10 --fault-report=artifacts/soak.md $(ARGS) tests/faults/test_soak.py

check: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo 'Not formatted; run: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/mypy

setup: $(STAMP)

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'tiercel needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 2; }
	@$(PYTHON) -B -m compose python-venv java rabbitmq-server redis-server
	@[ -x $(BIN)/pip ] || { echo 'tiercel: making $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@echo "tiercel: installing $$(grep -c '==' constraints.txt) packages into $(VENV) (Spark is a download of 450 MB: minutes)"
	@sed -n '/^\($(BUILDERS)\)==/,/[^\\]$$/p' constraints.txt > $(VENV)/builders.txt
	@$(INSTALL) --quiet --require-hashes -r $(VENV)/builders.txt
	@$(INSTALL) --require-hashes --use-pep517 --no-build-isolation -r constraints.txt
	@$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@echo 'tiercel: having Spark practise its start'
	-@$(BIN)/tiercel prepare
	@touch $@

clean:
	@rm -rf artifacts build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

clean-all: clean
	@rm -rf $(VENV)

# Beside what pyproject.toml names: what builds packages, and what redis needs on Python before 3.11.3.
LOCK_ALSO := async-timeout editables hatchling setuptools wheel
# What writes the pins is pinned too: raise it by hand.
PIP_TOOLS := pip-tools==7.6.2
lock:
	@mkdir -p .cache
	@[ -x .cache/lock/bin/pip-compile ] || \
		{ $(PYTHON) -m venv .cache/lock; .cache/lock/bin/python -m pip install --quiet $(PIP_TOOLS); }
	@printf '%s\n' $(LOCK_ALSO) > .cache/lock.in
	@.cache/lock/bin/pip-compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--output-file .cache/constraints.txt pyproject.toml .cache/lock.in
	@.cache/lock/bin/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--output-file .cache/bench-constraints.txt bench/requirements.in
	@{ echo '# Every version that the benchmark compares with. Written by `make lock`; do not edit.'; \
		sed '/^$$/d; /^# /d' .cache/bench-constraints.txt; } > bench/constraints.txt
	@{ echo '# Every version that tiercel is tested with, for set-up, tests and lint. Written by `make lock`; do not edit.'; \
		sed '/^$$/d; /^# /d' .cache/constraints.txt; } > constraints.txt
