# Every target installs what it needs: an environment in .venv with the packages of pyproject.toml.
# `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PACKAGES := --editable ".[test]"
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TIMED := .ci/timed

# Spark starts its Python workers, and the process that looks for data sources, with these. Without
# them it takes the first python3 on PATH, which does not have our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# With this address, local Spark needs no resolvable host name and no network.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Tests start hundreds of Python processes. Each would compile our modules again if a setting of the
# environment kept Python from storing them.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest
# Number of test processes. Each has its own Spark with two cores and about 1.5 GiB.
WORKERS ?= 2
# An idle process takes tests from the other, so that both end together.
SIDE_BY_SIDE := -n $(WORKERS) --dist worksteal
# `FILE=tests/verify/test_verify.py`, `FILE=tests/jobs`, or several: these alone. One file is not worth
# the start of two processes.
FILE ?=
CHOSEN := $(if $(findstring .py,$(FILE)),,$(SIDE_BY_SIDE)) $(FILE)

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## *' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make test FILE=tests/verify/test_verify.py   only this file or folder, without style and types,"
	@echo "                                             but with campaigns and live"
	@echo "  make campaigns RMQSTORE_SEED=WORD          a part of the cases, chosen by the word"
	@echo "  make test WORKERS=4                        number of test processes (default 2)"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python 3.10 or newer is needed; choose one with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(TIMED) environment bash -c '$(PYTHON) -m venv $(VENV) \
	  && $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PACKAGES)'
	@touch $@

# The loops, compiled in place. hatch_build.py compiles what changed, and writes the file if a compiler was
# there; without one they run interpreted, and every target says so. The name holds the number of sources,
# so that one that goes away counts as a change.
LOOP_SOURCES := $(wildcard rmq_store/loops/*.py rmq_store/loops/*.pxd)
LOOPS := build/loops-of-$(words $(LOOP_SOURCES))-sources
$(LOOPS): $(READY) hatch_build.py $(LOOP_SOURCES)
	@$(TIMED) loops $(BIN)/python hatch_build.py --stamp $@

.PHONY: venv
venv: $(LOOPS)  ## create the virtual environment in .venv

.PHONY: jdk
jdk:
	@.ci/need-jdk

.PHONY: demo
demo: jdk  ## replay a real broker's store through local Spark, and show the result
	@$(MAKE) --no-print-directory demo-of-venv $(if $(wildcard $(READY)),,$(OF_DEMO))

# A new checkout gets an environment with what the demo needs: tests need many more packages. hatchling and
# setuptools compile the loops in place.
OF_DEMO := VENV=build/demo-venv PACKAGES='--editable ".[spark]" hatchling setuptools'

.PHONY: demo-of-venv
demo-of-venv: $(LOOPS)
	@$(BIN)/python jobs/demo.py

.PHONY: lint
lint: $(READY)  ## check code style and import layers
	@$(TIMED) lint bash -c '$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo'

.PHONY: types
types: $(READY)  ## check types with mypy, strict
	@$(TIMED) types $(BIN)/mypy --num-workers $(WORKERS)

# Created once. It halves the start time of each Spark session in a run, and of its Python workers.
$(VENV)/spark-classes.jsa: $(READY)
	@$(TIMED) "classes of Spark" bash -c '$(BIN)/python -m tests.support.running.compiled_pyspark \
	  && $(BIN)/python -m tests.support.running.jvm'

.PHONY: fast
fast: jdk $(LOOPS) $(VENV)/spark-classes.jsa
	@$(TIMED) "fast tests" $(PYTEST) -m "not live and not campaign" $(CHOSEN)

.PHONY: test
test: $(if $(FILE),,lint types) fast  ## check style and types, run all fast tests

.PHONY: campaigns
campaigns: jdk $(LOOPS) $(VENV)/spark-classes.jsa  ## run all cases of the long campaigns
	@$(TIMED) campaigns $(PYTEST) -m "campaign and not live" $(CHOSEN)
	@$(if $(FILE),,$(MAKE) --no-print-directory sanitized)

# About two minutes on two cores.
.PHONY: sanitized
sanitized: $(LOOPS)  ## read damaged records with loops that the address sanitizer watches (gcc)
	@$(TIMED) "address sanitizer" .ci/sanitized $(BIN)/python -q -p no:cacheprovider \
	  -m "not live and not campaign" $(SIDE_BY_SIDE) tests/loops/test_log_walk.py \
	  tests/reading/test_any_bytes.py \
	  tests/arrow/test_fast_equals_readable.py::test_damage_is_noticed_by_both_paths

# The loops, and what stands on them, with loops that run as Python: columns, and reads of golden and damaged
# stores. Not the other questions and rooms: what they call was compared here, and they would find the same
# slowly.
INTERPRETED := loops arrow reading/test_golden.py reading/test_any_bytes.py reading/test_record_start.py
.PHONY: interpreted
interpreted: $(LOOPS)  ## run a part of the core's tests with loops that are not compiled
	@RMQSTORE_INTERPRETED=1 $(TIMED) "interpreted loops" $(PYTEST) -m "not live and not campaign" \
	  $(SIDE_BY_SIDE) $(addprefix tests/,$(INTERPRETED))

# One test at a time, because each starts a broker and a Spark, and more may not fit in memory.
.PHONY: live
live: jdk $(LOOPS) $(VENV)/spark-classes.jsa  ## run tests that start a real broker (Maven downloads it)
	@$(TIMED) "live brokers" $(PYTEST) -m "live and not long" $(FILE)

.PHONY: long
long: jdk $(LOOPS) $(VENV)/spark-classes.jsa  ## run the long tests with real brokers
	@$(TIMED) "long tests" $(PYTEST) -m long $(FILE)

# Minutes for each pair, most of them to install PySpark. Not part of test-all.
.PHONY: matrix
matrix: jdk  ## test the built package with CPython 3.10 to 3.14 and PySpark 4.0 to the newest
	@$(TIMED) matrix .ci/matrix

.PHONY: test-all
test-all: test  ## run make test, interpreted, the long campaigns and the tests with real brokers
	@$(MAKE) --no-print-directory interpreted
	@$(MAKE) --no-print-directory campaigns
	@$(MAKE) --no-print-directory live

.PHONY: bench
bench: jdk $(LOOPS)  ## measure how fast reading and writing are
	@$(BIN)/python -m benchmarks.core

.PHONY: bench-spark
bench-spark: jdk $(LOOPS)  ## compare the Spark source with the limit of its API and with Parquet
	@$(BIN)/python -m benchmarks.spark

.PHONY: bench-stream
bench-stream: jdk $(LOOPS)  ## measure readStream against batch reads, its latency, and many queues
	@$(BIN)/python -m benchmarks.stream

.PHONY: docs
docs: $(LOOPS)  ## build the documentation in build/docs; broken links are errors
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -E -b html docs build/docs
	@echo "build/docs/index.html"

.PHONY: notebooks
notebooks: jdk $(LOOPS)  ## run the notebooks and write them as pages to build/notebooks
	@$(BIN)/python -m nbconvert --to html --execute --log-level WARN \
	  --output-dir build/notebooks notebooks/*.ipynb
	@echo "build/notebooks/"

.PHONY: format
format: $(READY)  ## format the code
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: clean
clean:  ## remove the environment and all generated files
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f rmq_store/loops/*.so
	rm -rf demo-out benchmarks/out spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
