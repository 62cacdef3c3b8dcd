# Every verb of the project; people, pre-commit and CI use the same ones.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(or $(firstword $(shell command -v python3.11 python3)),python3.11)
VENV := .venv/pyvenv.cfg
BIN := .venv/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
STAMPS := .cache/stamps
NODE := tests/e2e/node
CODEX := tests/e2e/codex
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# The extension links when Python loads it, so its crate is built by maturin and checked by clippy, but has no test binary.
CRATES := --workspace --exclude penstock-py

export VIRTUAL_ENV := $(CURDIR)/.venv
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
export PYTHONUNBUFFERED := 1
# Line tables are enough for a backtrace and build in two thirds of the time.
export CARGO_PROFILE_DEV_DEBUG := line-tables-only
# The locks name everything, so nothing is resolved: pip would look at newer releases of what is asked for with extras, and refuse them.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --require-hashes --no-deps

COMPILE := $(BIN)/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-header --no-emit-index-url
# SDKs that the tests use besides the newest; each is installed into a folder of its own.
SDKS := anthropic-0 openai-1 openai-2 others portkey-ai-2

SAY := @printf '\n▸ %s\n'
done = @mkdir -p $(STAMPS) && touch $@

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ── the verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────

.PHONY: run
run: build ## build what is out of date, start the gateway with its pretend provider on 127.0.0.1:8787
	$(SAY) 'starting the gateway; the lines to paste follow; Ctrl-C stops everything'
	@exec $(BIN)/penstock serve --mock $(TARGET)/release/penstock-mock $(ARGS)

.PHONY: build
build: $(STAMPS)/run $(STAMPS)/engine $(STAMPS)/mock ## build the extension and the pretend provider in release

.PHONY: test
test: build $(STAMPS)/test $(STAMPS)/node $(STAMPS)/codex $(SDKS:%=$(STAMPS)/sdk-%) $(STAMPS)/debian ## install what the tests need and run all of them
	@.ci/steps check test-rust test-python

.PHONY: test-rust
test-rust: $(STAMPS)/toolchain $(STAMPS)/debian $(VENV) ## the Rust tests alone
	$(SAY) 'Rust tests: unit, golden, engine features against the pretend provider (the first build takes about 3 minutes on 2 cores)'
	@cargo test --no-fail-fast $(CRATES) $(ARGS)

.PHONY: test-python
test-python: build $(STAMPS)/test $(STAMPS)/node $(STAMPS)/codex $(SDKS:%=$(STAMPS)/sdk-%) $(STAMPS)/debian ## the Python and Node tests alone; ARGS go to pytest
	$(SAY) 'Python tests: shape, unit, integration, end to end with the SDKs of Python and Node'
	@$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

.PHONY: check
check: build $(STAMPS)/test ## formatting, lints, types, layers: what a change must pass besides the tests
	$(SAY) 'formatting, lints, types, layers (clippy takes about a minute the first time)'
	@failed=0; for tool in 'cargo fmt --all --check -- -l' '$(BIN)/ruff format --check' '$(BIN)/ruff check' \
		'$(BIN)/lint-imports --no-logo --no-cache' '$(BIN)/pyright --project pyproject.toml' \
		'cargo clippy --workspace --all-targets -- --deny warnings'; do \
		echo "· $$tool"; $$tool || failed=1; \
	done; exit $$failed

.PHONY: fix
fix: $(STAMPS)/test ## format, and mend what the linters can mend
	@cargo fmt --all
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format
	@cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

.PHONY: docs
docs: build ## write the generated pages in docs/ again
	@$(BIN)/python docs/generate.py

.PHONY: bench
bench: build $(STAMPS)/bench $(STAMPS)/sdk-others ## measure the parts: criterion and pytest-benchmark
	$(SAY) 'criterion, then pytest-benchmark (about 5 minutes)'
	@cargo bench $(CRATES) --benches
	@$(BIN)/python -m pytest benches --benchmark-only $(ARGS)

.PHONY: load
load: build $(STAMPS)/bench ## locust scenarios against a gateway of its own; a short run and a report
	$(SAY) 'locust: chat, stream, mixed faults'
	@$(BIN)/python -m loadtests $(ARGS)

.PHONY: compare
compare: build $(STAMPS)/bench ## the gateway beside nginx, HAProxy, Envoy and other gateways in one run
	$(SAY) 'side by side, rounds interleaved; it prints what it is doing and how long is left'
	@$(BIN)/python -m benches.compare $(ARGS)

# Processes that are killed; fewer with PostgreSQL.
KILLS ?= 1000

.PHONY: kills
kills: build $(STAMPS)/test $(STAMPS)/debian ## kill -9 the process that writes again and again (KILLS=1000), and look whether all that it acknowledged is there
	$(SAY) '$(KILLS) times kill -9 of the process that writes; it says how many writes were acknowledged'
	@PENSTOCK_KILLS=$(KILLS) $(BIN)/python -m pytest tests/integration/test_kills.py -k whenever $(ARGS)

.PHONY: lock
lock: $(STAMPS)/test ## compile pyproject.toml into requirements/*.txt; ARGS=--upgrade takes newer versions
	@for lock in run:"build" test:"build test lint lock" bench:"build test lint lock bench"; do \
		$(COMPILE) pyproject.toml $$(printf -- ' --group %s' $${lock#*:}) \
			$${previous:+--constraint $$previous} --output-file requirements/$${lock%%:*}.txt $(ARGS); \
		previous=requirements/$${lock%%:*}.txt; \
	done; \
	for sdk in $(SDKS); do \
		$(COMPILE) --group pyproject.toml:sdk-$$sdk --output-file requirements/sdk-$$sdk.txt $(ARGS); \
	done

.PHONY: audit
audit: ## licences, sources and doubled versions of the Rust dependencies (needs cargo-deny)
	@cargo deny --all-features check licenses bans sources

.PHONY: clean
clean: ## remove everything that was built or installed here
	rm -rf .venv .cache $(TARGET) $(NODE)/node_modules $(CODEX)/node_modules python/penstock/_engine*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# ── what the verbs stand on; each is done again only when what it was made from has changed ──────────────────────────

$(STAMPS)/toolchain:
	@.ci/debian cc=build-essential
	@cargo --version >/dev/null || { echo 'cargo is missing; hint: Rust 1.95 from rustup'; exit 1; }
	$(done)

$(VENV):
	$(SAY) 'creating .venv with $(PYTHON) (seconds)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed'; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/debian =python3-venv
	@$(PYTHON) -m venv --clear .venv

$(STAMPS)/run: requirements/run.txt $(VENV)
	$(SAY) 'installing the locked Python packages (about half a minute)'
	@$(PIP) --requirement $<
	$(done)

$(STAMPS)/engine: $(RUST) pyproject.toml $(STAMPS)/run $(STAMPS)/toolchain $(if $(wildcard python/penstock/_engine*.so),,again)
	$(SAY) 'building the engine in release (the first time about 2 minutes on 2 cores, later only what changed)'
	@$(BIN)/maturin develop --release
	$(done)

$(STAMPS)/mock: $(RUST) $(STAMPS)/toolchain $(if $(wildcard $(TARGET)/release/penstock-mock),,again)
	$(SAY) 'building the pretend provider in release (about a minute)'
	@cargo build --release --package penstock-mock
	$(done)

$(STAMPS)/test: requirements/test.txt $(STAMPS)/run
	$(SAY) 'installing the locked packages of the tests and linters (about a minute)'
	@$(PIP) --requirement $<
	$(done)

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/test
	$(SAY) 'installing the locked packages of the benches (about a minute)'
	@$(PIP) --requirement $<
	$(done)

$(STAMPS)/sdk-%: requirements/sdk-%.txt | $(VENV)
	$(SAY) 'installing $* of the end-to-end tests beside the newest (seconds)'
	@rm -rf .cache/sdk/$*
	@$(PIP) --quiet --target .cache/sdk/$* --requirement $<
	$(done)

$(STAMPS)/node: $(NODE)/package.json $(NODE)/package-lock.json
	$(SAY) 'installing the locked Node packages of the end-to-end tests (about half a minute)'
	@command -v npm >/dev/null || { echo 'npm is missing; hint: Node 20 brings it'; exit 1; }
	@cd $(NODE) && npm ci --no-audit --no-fund
	$(done)

$(STAMPS)/codex: $(CODEX)/package.json $(CODEX)/package-lock.json
	$(SAY) 'installing Codex CLI for its end-to-end test (some seconds, 400 MB)'
	@cd $(CODEX) && npm ci --no-audit --no-fund
	$(done)

# Debian keeps PostgreSQL's programs out of the path, and libfaketime is none.
$(STAMPS)/debian:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || .ci/debian initdb=postgresql
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || .ci/debian =libfaketime
	@.ci/debian redis-server=redis-server
	$(done)

.PHONY: again
again:
