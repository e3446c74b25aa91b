# Everything starts here: `make run` and `make test` set up what they need, from a fresh clone, and are quick after that.
# Needed on the machine: Python 3.11 or newer with its venv module, make, and for Spark a Java runtime 17 or newer.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled once and kept, whatever the machine's default is: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
# The first of these that runs and is new enough; `make PYTHON=/usr/bin/python3.12 ...` names another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
INSTALLED_FROM := requirements.lock pyproject.toml hatch_build.py gateway/sockets/_batches.c
# One stamp for each content of the files that decide what is installed: an unchanged set-up is not repeated.
STAMP := $(VENV)/.installed-$(shell cat $(INSTALLED_FROM) | cksum | tr ' ' -)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
ARGS ?=
# How tests are shared out: a file is one worker's, and files begin in the order in which tests/conftest.py puts them. Tests
# wait for processes, disks and clocks, so four workers keep two processors busy.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Compiles all modules, those of tests too, in a fresh clone, where each worker would compile all of them at the same time.
# The checks beside it keep one processor busy.
COMPILE := $(BIN)/python -m pytest -q --collect-only -p no:cacheprovider
# The beginning and the end of a recipe whose parts all run, whatever becomes of one: `run COMMAND` is a part.
PARTS := failed=; run() { echo "$$*"; "$$@" || failed="$$failed\n  $$*"; }
END_OF_PARTS := test -z "$$failed" || { printf "failed:$$failed\n" >&2; exit 1; }
# The figure that `make bench` measures, by its name; all of them by default; `make bench BENCH=list` names them.
BENCH ?=
# How many histories `make nightly` simulates of each kind, and from which seed on; a failure names its seeds.
SIM_SEEDS ?= 20000
SIM_FIRST ?= $(shell date +%y%j)00000
# How many faults `make faults` lets happen to a cluster under load, and which.
FAULTS ?= 100
FAULTS_SEED ?= $(shell date +%y%j%H%M)
# How many inputs `make fuzz` makes for each of its targets, and from which seed; a finding names its seed and lot.
FUZZ_INPUTS ?= 1000000
FUZZ_SEED ?= $(shell date +%y%j)
# For how many seconds `make chaos` hurts MQTT clients and their gateway, how often it kills beside AMQP clients, and
# which seed it takes its chances from.
CHAOS_S ?= 600
CHAOS_KILLS ?= 30
CHAOS_SEED ?= $(shell date +%y%j%H%M)
# How many AMQP queues `make soak` declares and deletes, three times.
SOAK_QUEUES ?= 40000

.PHONY: help setup run serve test test-fast interop nightly campaign fuzz faults chaos soak check format rooms bench chart lock java clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install the exact versions of requirements.lock

# setuptools comes first because one dependency (pyspark) is built from source: nothing unpinned ever runs.
$(STAMP): $(INSTALLED_FROM)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed, for example: apt-get install python3 python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	@awk '/^[^ #]/ {on = /^setuptools==/} on' requirements.lock > $(VENV)/first.lock
	@$(PIP) install --quiet --require-hashes --no-deps -r $(VENV)/first.lock
	@$(PIP) install --quiet --require-hashes --no-deps --no-build-isolation --use-pep517 -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@test -e gateway/sockets/_batches.abi3.so || echo "Without a C compiler and Python's headers $(VENV) has no compiled socket calls: Python does their work, more slowly"
	@touch $@

run: java $(STAMP) ## Run the main job: gateway, Spark and a fleet over all protocols (ARGS="--for 60s")
	@$(BIN)/python -m deploy.demo $(ARGS)

serve: $(STAMP) ## Run the gateway alone (ARGS="--port-offset 1000")
	@$(BIN)/headgate serve $(ARGS)

test: java $(STAMP) ## All checks and all tests, or those that ARGS names
ifdef ARGS
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest $(ARGS)
else
	@$(PARTS); \
	test -d tests/__pycache__ || $(COMPILE) >/dev/null 2>&1 & \
	run $(MAKE) --no-print-directory check; \
	wait; \
	run $(BIN)/python -m pytest -n 4 $(BY_FILE); \
	$(END_OF_PARTS)
endif

test-fast: $(STAMP) ## The units alone, without Spark, processes and what is marked slow
	$(BIN)/python -m pytest -q -n 3 $(BY_FILE) -m "not slow and not spark" tests/unit $(ARGS)

interop: $(STAMP) ## Clients for Node, Go and Java, Trino, and clients' own suites (needs npm, go, mvn and what they fetch from)
	HEADGATE_MQTTJS=1 HEADGATE_AMQPLIB=1 HEADGATE_NODE_COAP=1 HEADGATE_JAVA=1 HEADGATE_EVENTS_SDKS=1 HEADGATE_H2SPEC=1 \
	HEADGATE_AMQP_SUITES=1 HEADGATE_TRINO=1 \
		$(BIN)/python -m pytest tests/interop/mqtt/test_mqttjs.py tests/interop/test_amqplib.py \
		tests/interop/suites tests/interop/test_java_client.py tests/interop/coap tests/interop/http/test_events_sdks.py \
		tests/interop/http/test_h2spec.py tests/interop/spark/test_trino.py $(ARGS)

nightly: $(STAMP) ## Simulate failing stores, Raft, store groups, CoAP and whole clusters, otherwise every day (SIM_SEEDS=20000)
	HEADGATE_SIM_SEEDS=$(SIM_SEEDS) HEADGATE_SIM_FIRST=$(SIM_FIRST) $(BIN)/python -m pytest tests/sim $(ARGS)
	HEADGATE_NIGHTLY=1 $(BIN)/python -m pytest -m nightly tests/unit tests/interop tests/cluster
	HEADGATE_NIGHTLY=1 $(BIN)/python -m pytest -n 2 $(BY_FILE) tests/property

campaign: $(STAMP) ## Simulate whole clusters, resumable; the count is kept in tests/sim/results (SIM_SEEDS=20000)
	$(BIN)/python -m tests.sim.campaign --first $(SIM_FIRST) --seeds $(SIM_SEEDS) $(ARGS)

fuzz: $(STAMP) ## Hurt input of every protocol for decoders and whole connections (FUZZ_INPUTS=1000000 FUZZ_SEED=1)
	$(BIN)/python -m tests.fuzz.targets.mqtt_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.amqp_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.coap_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.http_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.requests_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.events_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.targets.bodies_target --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED) $(ARGS)

faults: $(STAMP) ## A cluster of processes hurt under load: killed, cut off, disks full (FAULTS=100 FAULTS_SEED=1)
	@echo "$(FAULTS) faults, FAULTS_SEED=$(FAULTS_SEED)"
	HEADGATE_FAULTS=$(FAULTS) HEADGATE_FAULTS_SEED=$(FAULTS_SEED) $(BIN)/python -m pytest -s \
		tests/cluster/test_cluster_faults.py $(ARGS)

chaos: $(STAMP) ## MQTT clients cut off, AMQP clients at work, their gateways killed (CHAOS_S=600 CHAOS_KILLS=30 CHAOS_SEED=1)
	@echo "$(CHAOS_S) seconds and $(CHAOS_KILLS) kills, CHAOS_SEED=$(CHAOS_SEED)"
	HEADGATE_CHAOS_S=$(CHAOS_S) HEADGATE_CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -s \
		tests/cluster/kill/test_mqtt_chaos.py $(ARGS)
	HEADGATE_CHAOS_KILLS=$(CHAOS_KILLS) HEADGATE_CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -s \
		tests/cluster/kill/test_amqp_chaos.py $(ARGS)

soak: $(STAMP) ## Declare and delete AMQP queues; do memory and disk stay where they were? (SOAK_QUEUES=40000)
	HEADGATE_SOAK_QUEUES=$(SOAK_QUEUES) $(BIN)/python -m pytest -s tests/cluster/test_queue_soak.py $(ARGS)

check: $(STAMP) ## The checks without the tests
	@$(PARTS); \
	run $(BIN)/ruff check; \
	run $(BIN)/ruff format --check; \
	run $(BIN)/mypy; \
	run $(BIN)/lint-imports; \
	$(END_OF_PARTS)

format: $(STAMP) ## Put the code into its one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

rooms: $(STAMP) ## Write who imports a room, and what it imports, into its __init__
	$(BIN)/python -m tests.support.repository.rooms

bench: $(STAMP) ## Measure beside the peers that are installed (BENCH=mqtt-publish ARGS="--rounds 5")
	@$(BIN)/python -m tests.bench $(BENCH) $(ARGS)

chart: $(STAMP) ## Render the Helm chart for its tests (needs helm)
	@command -v helm >/dev/null || { echo "helm is needed for this: https://helm.sh/" >&2; exit 1; }
	$(BIN)/python -m tests.unit.deploy.render

lock: ## Resolve requirements.lock again (needs uv)
	@command -v uv >/dev/null || { echo "uv is needed for this: https://docs.astral.sh/uv/" >&2; exit 1; }
	uv pip compile pyproject.toml --all-extras --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate -o requirements.lock

java:
	@sh deploy/check-java.sh || true

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) gateway/sockets/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
