# Needs make and Python 3.11 or newer with pip and venv. uv is used when it is on PATH, never needed.
#
#   PYTHON=…   the interpreter for .venv (default: the first of python3.11, 3.12, 3.13, python3 that works)
#   JOBS=…     parallel test processes (default 3: on two cores, since a third of the time is waiting)
#   ARGS=…     passed on to pytest, the simulator, chaos, bench, scale, proof or the demo: make test ARGS="-k canonical"

VENV := .venv
BIN  := $(VENV)/bin
JOBS ?= 3
ARGS ?=

# Empty means "not set": a test that starts many processes would otherwise compile amends again in each of them.
export PYTHONDONTWRITEBYTECODE :=

# A stamp is newer than pyproject.toml once the packages of that file are installed. .dev includes .run.
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
SITE := $(VENV)-site/.site

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check sim chaos crowd bench proof scale servers format docs site screenshots test-console test-gateway test-engines test-peers test-rest test-upgrade test-pythons test-adapters new-machine dist release clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(RUN) ## the shop: commit, roll back, kill and recover, refuse; then its console, until Ctrl-C (ARGS=--no-serve: without)
	@$(BIN)/amends demo $(ARGS)

test: $(DEV) ## all tests, except test-peers
	@$(BIN)/python -m pytest -n $(JOBS) --ignore=tests/peers $(ARGS)

check: $(DEV) ## format, lint, types, import rule, docs
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/python scripts/docs.py --check
	@$(BIN)/python scripts/typescript.py --check
	@$(BIN)/python -m pytest -q tests/project/test_layout.py tests/docs/test_docs.py -k 'not examples_of_a_page'  # make test runs them

sim: $(DEV) ## the simulator: every crash point, seeded races (ARGS=200000: that many schedules; ARGS="--store sqlite": on SQLite)
	@$(BIN)/python -m tests.sim $(ARGS)

chaos: $(DEV) ## real processes over real ledgers, killed: ten minutes a ledger (ARGS="--store sqlite --short")
	@$(BIN)/python -m tests.chaos $(ARGS)

bench: $(DEV) ## speed, as ratios to the floor of the same run, and the peers (ARGS=--quick: a minute, no peers)
	@$(BIN)/python -m bench $(ARGS)

scale: $(DEV) ## what one PostgreSQL ledger carries, what global operations cost; writes the tables of the page on scale (ARGS=--quick: a minute, writes nothing)
	@$(BIN)/python -m bench.scale $(ARGS)

proof: $(DEV) ## tasks of AgentDojo under faults, with amends, bare and over other packages (ARGS=--quick: a minute)
	@$(BIN)/python -m proof $(ARGS)

servers: ## install PostgreSQL, MariaDB, PgBouncer, Redis, nginx, Prometheus, Node.js and Chromium by apt-get; nothing else does (make test uses what is here)
	@sh scripts/servers

format: $(DEV) ## format the code
	@$(BIN)/python -m ruff check --fix-only --quiet .
	@$(BIN)/python -m ruff format .

docs: $(DEV) ## write the generated parts of docs/ and clients/ again and check the links
	@$(BIN)/python scripts/docs.py
	@$(BIN)/python scripts/typescript.py

site: $(DEV) $(SITE) ## build the documentation site from docs/ into build/site/html
	@$(BIN)/python scripts/site.py $(VENV)-site/bin/zensical

crowd: $(DEV) ## 64 threads and 200 tasks in one process over each ledger, a minute each, then everything is checked
	@$(BIN)/python -m tests.chaos.crowd $(ARGS)

test-peers: $(DEV) ## failures of other packages and open reports about frameworks: amends does not repeat them
	@$(BIN)/python -m pytest -n $(JOBS) tests/peers $(ARGS)

test-rest: $(DEV) ## what make test leaves out for time: more stores and colours for each check, more places for each fault
	@$(BIN)/python -m pytest -n $(JOBS) --ignore=tests/peers --ignore=tests/console/browser --ignore=tests/gateway --ignore=tests/docs/test_gateway_page.py --ignore=tests/engines --ignore=tests/docs/test_engine_pages.py -m rest $(ARGS)

test-upgrade: $(DEV) ## a million calls on each database, migrated while the previous version works (ARGS=20000: so many)
	@$(BIN)/python -m tests.fleet.migrating $(ARGS)

test-console: $(DEV) ## the console in a real browser (Chromium): decisions, live updates, accessibility, hostile data
	@$(BIN)/python -m pytest -n $(JOBS) -m '' tests/console/browser $(ARGS)

test-gateway: $(DEV) ## the MCP gateway with real servers from npm and PyPI, in both eras of the protocol, killed and taken back
	@$(BIN)/python -m pytest -n $(JOBS) -m '' tests/gateway tests/docs/test_gateway_page.py $(ARGS)

test-engines: $(DEV) ## agents on Temporal and Restate: worker, server or node killed at every point of the shared flows, and the table of how each ends
	@$(BIN)/python -m pytest -n $(JOBS) -m '' tests/engines tests/docs/test_engine_pages.py $(ARGS)

screenshots: $(DEV) ## the pictures of the console in docs/assets/console, light and dark (needs Chromium)
	@$(BIN)/python scripts/screenshots.py $(ARGS)

test-pythons: ## the quick tests on every other supported Python found here
	@JOBS=$(JOBS) sh scripts/test-pythons

test-adapters: ## the adapters of heavy frameworks and the recipes, each in an environment of its own (ARGS=crewai: that one)
	@sh scripts/test-adapters $(ARGS)

dist: ## pack the client in TypeScript into dist/ (needs node and npm)
	@sh scripts/dist

new-machine: ## try this commit as a stranger would: bare clone, empty HOME, root and an ordinary user, every Python; then the wheel (ARGS=--quick)
	@bash scripts/new-machine $(ARGS)

release: $(DEV) ## check, build, try, commit and tag a release; publishes nothing (VERSION=0.1.0; ARGS=--plan: only says what it would do)
	@$(BIN)/python scripts/release.py "$(VERSION)" $(ARGS)

clean: ## remove what make made (never a ledger)
	rm -rf .venv* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf clients/typescript/node_modules clients/typescript/build clients/typescript/dist
	find src tests scripts bench proof -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEV): pyproject.toml
	@sh scripts/install $(VENV) '.[dev]' "$$(sh scripts/find-python)"
	@touch $(RUN) $@

$(SITE): pyproject.toml
	@sh scripts/install $(VENV)-site '.[site]' "$$(sh scripts/find-python)"
	@touch $@

# Not needed where .dev is: it holds the same and more.
ifeq ($(wildcard $(DEV)),)
$(RUN): pyproject.toml
	@sh scripts/install $(VENV) '.[serve]' "$$(sh scripts/find-python)"
	@touch $@
else
$(RUN): $(DEV)
	@touch $@
endif
