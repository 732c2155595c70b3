# Every target first builds .venv from the pinned, hashed lock. A Python from 3.11 to 3.13 is all it needs.
PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
STAMP := .venv/.dpflow-installed
PACKAGES := $(wildcard plugins/*/dpflow_*)
INTEGRATION := integrations/dpflow-dbt
DISTRIBUTIONS := . $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
DBT_STAMP := .venv-dbt/.dpflow-installed
SPARK_STAMP := .venv-spark/.dpflow-installed
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo up down test test-quick lint slow integration audit certificates release browser docs wheels compat dbt spark coverage bench experiments oracle lock clean

help:  # this list
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*# */\1\t/p' Makefile | expand -t 14

setup: $(STAMP)  # build .venv from the pinned, hashed lock

$(STAMP): requirements.lock pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("dpflow needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is %d.%d: run make PYTHON=python3.12 (or another one of these)." % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/uv --version 2>/dev/null | grep -q ' $(UV_VERSION)' || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet --compile-bytecode requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation $(addprefix --editable ,$(DISTRIBUTIONS))
	@touch $@

demo: setup  # a real Airflow releases fourteen days of flights; writes demo/report.html; a minute
	@$(BIN)/dpflow demo

up: setup  # Airflow's UI on the demo's state
	@$(BIN)/dpflow demo --up

down: setup  # stop it
	@$(BIN)/dpflow demo --down

# A test that waits for what never comes fails after 5 minutes and is named, and the others go on. By a signal: the other
# method ends the worker, and pytest-xdist gives the same test to the next one.
test: setup  # all tests that need no browser, no Java and no root
	$(BIN)/pytest -p no:cacheprovider -q -n 2 --dist loadscope --no-loadscope-reorder --timeout 300 --timeout-method signal

test-quick: setup  # unit tests of all rooms, for the inner loop: tests/quick.txt lists them
	$(BIN)/pytest -p no:cacheprovider -q -n 2 --dist loadscope --no-loadscope-reorder --timeout 300 --timeout-method signal \
		@tests/quick.txt

# Hours on a busy machine with two cores. Deaths at every line take most of them: on the engine 14 minutes for each life on
# SQLite and 19 to 36 on PostgreSQL, on the ledger 3 to 6; 200 deaths at random times take 6, each 1,000 rounds of the adversary 9.
# With two workers on a fast machine all 42 tests of ledger and releases took 32 minutes.
# 100,000 planned random queries take 40 minutes of CPU in twenty chunks, 2,000 executed ones 10 in ten: each chunk is its seed.
slow: setup $(DBT_STAMP) spark  # whole matrices and deaths at every line: hours
	$(BIN)/pytest -p no:cacheprovider -q -m slow --timeout 7200 --timeout-method signal

audit: setup  # a minute of CPU time for a mechanism at most, two at a time; writes docs/research/audits.md
	$(BIN)/python -m checks.audit_table --workers 2

# On the commit of a release, before wheels are built. Owners compare and sign what they ship: dpflow certify --accept. KEY=file
# signs it here, too, for those who trust the builder's key. The check at the end says which audits are not of this code.
certificates: setup  # `make audit`, and what it found beside the code of each distribution: the next wheels ship it
	$(BIN)/python -m checks.audit_table --workers 2 --ship $(if $(KEY),--certify $(KEY))
	$(BIN)/python -m checks.shipped_audits --whole

release: certificates  # wheels that ship audits of their own code, of every mechanism
	$(MAKE) wheels

# Whole deployments: two schedulers, 500 releases and killed workers; the image's environment; the walk in a browser.
integration: wheels  # whole deployments: two schedulers, 500 releases, killed workers
	$(BIN)/pytest -p no:cacheprovider -q -m integration --timeout 3600 --timeout-method signal

browser: setup  # pages in Debian's chromium
	$(BIN)/pytest -p no:cacheprovider -q -m browser

docs: setup  # the site, strictly
	$(BIN)/mkdocs build --strict --quiet

wheels: setup  # wheels and sdists of all distributions, by the build backend in .venv: no network, and no stale audit
	@$(BIN)/python -m checks.shipped_audits
	rm -rf dist
	for folder in $(DISTRIBUTIONS) $(INTEGRATION); do \
		$(BIN)/uv build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir dist $$folder || exit 1; \
	done

compat: wheels  # the oldest and newest versions that the ranges allow, each in an environment of its own
	$(BIN)/python -m checks.compat

$(DBT_STAMP): $(STAMP) $(INTEGRATION)/requirements.lock $(INTEGRATION)/pyproject.toml
	test -x .venv-dbt/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python .venv-dbt
	VIRTUAL_ENV=.venv-dbt $(BIN)/uv pip sync --quiet --compile-bytecode $(INTEGRATION)/requirements.lock
	VIRTUAL_ENV=.venv-dbt $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable . --editable $(INTEGRATION)
	@touch $@

dbt: $(DBT_STAMP)  # the example project under dbt itself, in an environment of its own beside Airflow; two minutes
	$(BIN)/pytest -p no:cacheprovider -q -m "slow or not slow" $(INTEGRATION)/tests

# Apache Spark itself: `pyspark` owns the same package as the client that dpflow uses, so it has an environment of its own.
$(SPARK_STAMP): $(STAMP) checks/spark_cluster.lock
	test -x .venv-spark/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python .venv-spark
	VIRTUAL_ENV=.venv-spark $(BIN)/uv pip sync --quiet checks/spark_cluster.lock
	@touch $@

spark: $(SPARK_STAMP)  # the backend's tests on a master, two workers and a server of Spark Connect on loopback; needs Java 17
	DPFLOW_TEST_SPARK=cluster $(BIN)/pytest -p no:cacheprovider -q -m "slow or not slow" --timeout 1800 --timeout-method signal \
		tests/tables/backends/spark_backend

bench: setup  # speed, as ratios to floors and peers of the same run
	$(BIN)/python -m bench

experiments: setup  # the figures of docs/research/experiments.md
	$(BIN)/python -m experiments

coverage: setup  # asks dpflow, Qrlew and SmartNoise the same queries; writes docs/research/sql-coverage.md; five minutes
	$(BIN)/python -m checks.sql_coverage

oracle: setup  # records what dp-accounting says, in an environment of its own: it does not install beside Airflow
	$(BIN)/uv run --quiet --isolated --no-project --python $(BIN)/python --with dp-accounting==0.6.0 \
		python tests/core/accounting/oracle_dp_accounting.py

lint: setup  # format, types, imports, rooms and references
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(if $(PACKAGES),$(BIN)/mypy $(PACKAGES))
	$(BIN)/mypy $(INTEGRATION)/dpflow_dbt
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m checks.rooms
	$(BIN)/python -m checks.references

lock: setup  # resolve all locks again
	VIRTUAL_ENV=.venv $(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade --output-file requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip compile pyproject.toml --extra all --constraint requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade --output-file deploy/requirements.lock
	echo hatchling | VIRTUAL_ENV=.venv $(BIN)/uv pip compile - --constraint requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade --output-file deploy/build.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip compile pyproject.toml --extra airflow --group $(INTEGRATION)/pyproject.toml:environment \
		--override $(INTEGRATION)/overrides.txt --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade --output-file $(INTEGRATION)/requirements.lock
	echo pyspark==$$(sed -n 's/^pyspark-client==\([0-9.]*\).*/\1/p' requirements.lock) | VIRTUAL_ENV=.venv $(BIN)/uv pip compile - \
		--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --upgrade --output-file checks/spark_cluster.lock

clean: down  # remove everything that was built
	rm -rf .venv .venv-compat .venv-dbt .venv-spark demo build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
