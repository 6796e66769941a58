# `make help` lists the targets. Each sets up what it needs and says what it installs; once set up, that costs nothing.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# Says in a few lines how far pip is; all that pip says is in the log.
INSTALL := $(PYTHON) -B .ci/install.py $(VENV)/install.log $(BIN)/python -m pip --disable-pip-version-check --no-input install
# Spark comes as a source package. What builds it is pinned too, and installed first instead of into a place of its own.
BUILDERS := packaging\|setuptools\|wheel

.DEFAULT_GOAL := help
.PHONY: help demo bench bench-docs docs soak test test-all test-rest test-faults test-newest test-oldest test-matrix test-joining test-yarn test-scaling test-keda test-kubernetes check setup clean clean-all lock
MAKEFLAGS += --no-print-directory
# Python keeps what it has compiled: without that, each of the thousands of processes of the tests compiles all of it anew.
unexport PYTHONDONTWRITEBYTECODE

# Times are of two cores, once set up. Set-up itself: five to ten minutes, most of it the download of Spark.
help:
	@echo 'Once set up, on two cores:'
	@echo '  make demo         1 min    count real text on RabbitMQ, Redis and Spark, with faults; ARGS="--calm": without'
	@echo '  make check        1 min    lint and types'
	@echo '  make test        11 min    check, and what shows most faults soonest; ARGS="tests/unit -k ledger": only these'
	@echo '  make test-all    41 min    make test and all that it leaves out; what CI runs'
	@echo '  make test-rest   30 min    what make test leaves out'
	@echo '  make test-newest  4 min    the integration tests of what another version of a server can change, in containers; in test-rest too'
	@echo '  make test-oldest 10 min    data frames on the oldest PySpark that has them'
	@echo '  make test-matrix  2 h      integration tests and faults on all versions of the servers, in containers'
	@echo '  make test-joining 4 min    executors come and go on a standalone Spark, a minute apart and amid messages of 20 s'
	@echo '  make test-yarn   15 min    word count and slow work on a YARN of two nodes on this machine, while executors are killed'
	@echo '  make test-scaling 10 min   executors come and go with the load, on a standalone Spark on this machine; ARGS="60 yarn": ten times the load for a minute, on YARN'
	@echo '  make test-keda    1 min    which Spark workers go when KEDA wants fewer, on Kubernetes without a node, as root; it is compiled first, in five minutes'
	@echo '  make test-kubernetes 25 min  the Helm chart on the cluster that KUBECONFIG names, else on a node made of this machine, as root, while pods are killed'
	@echo '  make soak        45 min    2,000 random trees with deaths, random faults for ten minutes, ten with effects that take place once, and five with windows; ARGS="--soak-seed=1234": those of an earlier soak'
	@echo '  make bench      105 min    measure tiercel beside its peers and Storm; QUICK=1: 10 min; ARGS="--only latency": a part'
	@echo '  make bench-docs   1 min    put its figures and plots into README.md and docs'
	@echo '  make docs         1 min    build the documentation as a site, in .cache/site/html'
	@echo '  make setup        5 min    set up, and nothing else: each target does that by itself'
	@echo '  make clean                 remove what runs and tests leave behind'
	@echo '  make clean-all             remove the virtual environment too'
	@echo '  make lock         1 min    pin the newest versions of all dependencies in constraints.txt'
	@echo 'Another Python: make clean-all, then PYTHON=python3.13 for the first target.'

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

# What builds the site has an environment of its own: it needs nothing of tiercel but its text.
SITE := .cache/site
DOCS := .cache/docs
docs: $(DOCS)/.complete
	@$(DOCS)/bin/python -B docs/layout.py $(SITE)
	@$(DOCS)/bin/python -B docs/pictures.py $(SITE)/pages/images
	@cd $(SITE) && "$(CURDIR)/$(DOCS)/bin/zensical" build --strict
	@echo 'The documentation is there: $(SITE)/html/index.html'

$(DOCS)/.complete: docs/constraints.txt
	@echo 'tiercel: installing what builds the documentation into $(DOCS)'
	@[ -x $(DOCS)/bin/pip ] || $(PYTHON) -m venv $(DOCS)
	@rm -f $(DOCS)/install.log
	@$(PYTHON) -B .ci/install.py $(DOCS)/install.log $(DOCS)/bin/python -m pip --disable-pip-version-check --no-input \
		install --require-hashes -r docs/constraints.txt
	@touch $@

# Quick tests wait more than they work: five files at a time on two cores. Of the rest, whole topologies and faults, two; with
# three processes, the third takes the files that mostly wait.
# Which tests are quick, which are the rest, and which of these run alone: tests/support/choice.py.
PYTEST := $(BIN)/python -m pytest
BY_FILE := --dist=loadfile --no-loadscope-reorder

test: check
ifeq ($(ARGS),)
	@$(PYTEST) -m quick --numprocesses=5 $(BY_FILE) --ignore=tests/faults
	@$(PYTEST) -m quick --numprocesses=2 $(BY_FILE) tests/faults
	@echo 'Passed: lint, types, unit, integration, semantics, and of whole topologies and faults one of each kind.'
	@echo 'Left out: the other topologies and faults, a soak, long waits, and the newest servers. `make test-all` runs them.'
else
	@$(PYTEST) $(ARGS)
endif

test-all: test test-rest

test-rest: check docs
	@$(PYTEST) -m "rest and not alone" --numprocesses=3 $(BY_FILE)
	@$(MAKE) test-faults test-newest
	@echo 'Left out: the topologies and faults that take longest, and the older servers. `make test-matrix` runs them.'

# One at a time: each compares how soon or how fast something is with how it was before, or was due.
test-faults: $(STAMP)
	@$(PYTEST) -m "rest and alone" tests/faults

# The integration tests of what sends commands to servers again, on servers in containers: tests/support/choice.py says which. Without a
# Docker engine this says so and passes, but not where CI is set.
test-newest: $(STAMP)
	@$(PYTEST) -m newest --servers=rabbitmq:4.3,valkey:9.1 --numprocesses=4 $(BY_FILE) tests/integration

# Data frames on the oldest PySpark that has them. Its environment is that of the tests, but for Spark.
OLDEST := .cache/oldest
# A new driver goes on from the checkpoint of one that was killed.
RESTART := tests/acceptance/test_data_frame_faults.py::test_a_driver_that_is_killed_loses_nothing_and_repeats_what_was_not_committed
SITE_OF := -c 'import site; print(site.getsitepackages()[0])'
test-oldest: $(OLDEST)/.complete
	@$(OLDEST)/bin/python -m pytest $(or $(ARGS),tests/unit/frames tests/integration/frames \
		tests/acceptance/test_data_frame_source.py tests/acceptance/test_data_frame_sink.py \
		tests/acceptance/test_data_frame_connect.py $(RESTART))

$(OLDEST)/.complete: tests/oldest.txt $(STAMP)
	@echo 'tiercel: installing the oldest PySpark into $(OLDEST)'
	@rm -rf $(OLDEST)
	@$(BIN)/python -m venv $(OLDEST)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(SITE_OF))')" > "$$($(OLDEST)/bin/python $(SITE_OF))/tests.pth"
	@$(PYTHON) -B .ci/install.py $(OLDEST)/install.log $(OLDEST)/bin/python -m pip --disable-pip-version-check --no-input \
		install --no-deps --use-pep517 --no-build-isolation --ignore-installed --require-hashes -r tests/oldest.txt
	@touch $@

# The faults write their tables there, to be read or put into docs/guarantees.md; the other options of both: pytest --help.
FAULTS := artifacts/faults.md

test-matrix: check
	@rm -f $(FAULTS)
ifeq ($(ARGS),)
	@$(PYTEST) --slow -m slow tests/acceptance
endif
	@for servers in rabbitmq:4.3,valkey:9.1 rabbitmq:4.0,redis:8.0 rabbitmq:3.10,redis:7.0; do \
		$(PYTEST) --slow --fault-report=$(FAULTS) --servers=$$servers $(or $(ARGS),tests/integration tests/faults) || exit 1; \
	done

# make test-all has the same in a shorter form, without SIGTERM.
test-joining: $(STAMP)
	@TIERCEL_TEST_LONG=yes $(PYTEST) --slow -o log_cli=true -o log_cli_level=WARNING --reruns=0 tests/acceptance/test_joining.py

# Hadoop's mini cluster comes from Maven Central, 100 MB; in no other target.
test-yarn: $(STAMP)
	@$(BIN)/python -m tests.clusters.on_yarn

test-scaling: $(STAMP)
	@$(BIN)/python -m tests.clusters.changing_load $(ARGS)

test-keda: $(STAMP)
	@$(BIN)/python -m tests.clusters.on_api_server

# Without KUBECONFIG, Kubernetes is compiled from its Go modules first, in five minutes; in no other target.
test-kubernetes: $(STAMP)
	@$(BIN)/python -m tests.clusters.on_kubernetes $(ARGS)

soak: check
	@$(PYTEST) -s --slow --soak-minutes=10 --random-trees=2000 --fault-report=artifacts/soak.md $(ARGS) -k soak \
		tests/semantics/test_random_trees.py tests/faults/test_soak.py tests/faults/test_booked.py
	@$(PYTEST) -s --slow $(ARGS) -k soak tests/faults/test_windows.py

check: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo 'Not formatted; run: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/mypy

setup: $(STAMP)

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'tiercel needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 2; }
	@$(PYTHON) -B -m tiercel.compose python-venv java rabbitmq-server redis-server
	@[ -x $(BIN)/pip ] || { echo 'tiercel: making $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@rm -f $(VENV)/install.log
	@echo "tiercel: installing $$(grep -c '==' constraints.txt) packages into $(VENV)"
	@sed -n '/^\($(BUILDERS)\)==/,/[^\\]$$/p' constraints.txt > $(VENV)/builders.txt
	@$(INSTALL) --require-hashes -r $(VENV)/builders.txt
	@$(INSTALL) --require-hashes --use-pep517 --no-build-isolation -r constraints.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@echo 'tiercel: having Spark practise its start, which makes each later one quicker'
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
	@for place in bench docs; do \
		.cache/lock/bin/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --generate-hashes \
			--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
			--output-file .cache/$$place-constraints.txt $$place/requirements.in || exit 1; \
	done
	@{ echo '# Every version that the benchmark compares with. Written by `make lock`; do not edit.'; \
		sed '/^$$/d; /^# /d' .cache/bench-constraints.txt; } > bench/constraints.txt
	@{ echo '# Every version that builds the documentation. Written by `make lock`; do not edit.'; \
		sed '/^$$/d; /^# /d' .cache/docs-constraints.txt; } > docs/constraints.txt
	@{ echo '# Every version that tiercel is tested with, for set-up, tests and lint. Written by `make lock`; do not edit.'; \
		sed '/^$$/d; /^# /d' .cache/constraints.txt; } > constraints.txt
