# Every target sets up what it needs: a virtual environment in .venv, and what pyproject.toml names.
# `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TIMED := .ci/timed

# Spark starts its Python workers, and the process that looks for data sources, with these.
# Without them it takes the first python3 on PATH, which has none of our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# One name for this machine: local Spark then needs no resolvable host name and no network.
export SPARK_LOCAL_IP ?= 127.0.0.1
PYTEST := $(BIN)/python -m pytest
# Tests run side by side, in as many processes. Each has a Spark of two cores and some 1.5 GiB of its own.
WORKERS ?= 2
# A process that is done takes tests from the other, so that both end together.
SIDE_BY_SIDE := -n $(WORKERS) --dist worksteal
# `FILE=tests/core/test_verify.py`, `FILE=tests/jobs`, or several: these alone. One file is not worth
# the start of two processes.
FILE ?=
CHOSEN := $(if $(findstring .py,$(FILE)),,$(SIDE_BY_SIDE)) $(FILE)

.PHONY: help
help:  ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make test FILE=tests/core/test_verify.py   that file alone, or a folder: no style, no types;"
	@echo "                                             also with campaigns and live"
	@echo "  make campaigns RMQSTORE_SEED=WORD          a part of the cases; which, the word decides"
	@echo "  make test WORKERS=4                        in so many processes (2)"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed; say which with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(TIMED) environment bash -c '$(PYTHON) -m venv $(VENV) \
	  && $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"'
	@touch $@

.PHONY: venv
venv: $(READY)  ## the virtual environment in .venv

.PHONY: jdk
jdk:
	@.ci/need-jdk

.PHONY: demo
demo: jdk $(READY)  ## replay a real broker's store through local Spark, and look at what came out
	@$(BIN)/python -m jobs.demo

.PHONY: lint
lint: $(READY)  ## style of the code, and the direction of its imports
	@$(TIMED) lint bash -c '$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo'

.PHONY: types
types: $(READY)  ## mypy, strict
	@$(TIMED) types $(BIN)/mypy

# Made once; each of some ten Sparks of a run then starts in half the time.
$(VENV)/spark-classes.jsa: $(READY)
	@$(TIMED) "classes of Spark" $(BIN)/python -m tests.support.running.jvm

.PHONY: fast
fast: jdk $(READY) $(VENV)/spark-classes.jsa
	@$(TIMED) "fast tests" $(PYTEST) -m "not live and not campaign" $(CHOSEN)

.PHONY: test
test: $(if $(FILE),,lint types) fast  ## style, types, all fast tests and the examples of the docs

.PHONY: campaigns
campaigns: jdk $(READY) $(VENV)/spark-classes.jsa  ## the long campaigns, whole
	@$(TIMED) campaigns $(PYTEST) -m "campaign and not live" $(CHOSEN)

# One after the other: each starts a broker and a Spark at once, which is all that memory is sure to hold.
.PHONY: live
live: jdk $(READY) $(VENV)/spark-classes.jsa  ## tests that start a real broker (Maven fetches it)
	@$(TIMED) "live brokers" $(PYTEST) -m live $(FILE)

.PHONY: test-all
test-all: test  ## make test, then the long campaigns and the real brokers
	@$(MAKE) --no-print-directory campaigns
	@$(MAKE) --no-print-directory live

.PHONY: bench
bench: jdk $(READY)  ## how fast reading and writing are on this machine
	@$(BIN)/python -m benchmarks.core

.PHONY: bench-spark
bench-spark: jdk $(READY)  ## how fast the Spark source is beside the floor of its API and Parquet
	@$(BIN)/python -m benchmarks.spark

.PHONY: docs
docs: $(READY)  ## the documentation as pages, in build/docs; broken links are errors
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -E -b html docs build/docs
	@echo "build/docs/index.html"

.PHONY: notebooks
notebooks: jdk $(READY)  ## the notebooks, run, as pages with their pictures, in build/notebooks
	@$(BIN)/python -m nbconvert --to html --execute --log-level WARN \
	  --output-dir build/notebooks notebooks/*.ipynb
	@echo "build/notebooks/"

.PHONY: format
format: $(READY)  ## rewrite the code in the house's style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: clean
clean:  ## remove the environment and everything that tools left
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf demo-out benchmarks/out spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
