# Every target sets up what it needs (deploy/dev/setup.sh) and is quick about it the second time.
# ARGS="..." goes on to what the target runs: make test ARGS="tests/unit -k paths"
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test test-etcd test-systemd test-faults test-large test-mpi4py test-slurm test-alerts test-container test-limits rdma test-schema fuzz check bench soak load bundle lock audit clean

ARGS ?=
MINUTES ?= 60
# Of a fuzz target, and the like.
SECONDS ?= 60
# Of a kind for each operation of the HTTP interface.
REQUESTS ?= 300
# Tests at once: they wait as often as they compute.
JOBS ?= 3
BENCH ?= $(patsubst bench/%.py,%,$(filter-out bench/load.py,$(sort $(wildcard bench/*.py))))
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin:/sbin

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

setup: ## the virtual environment .venv, and what the system lacks
	@deploy/dev/setup.sh
	$(if $(filter setup,$(MAKECMDGOALS)),@echo 'ready: . .venv/bin/activate')

setup-tests: ## also what only the tests need
	@deploy/dev/setup.sh tests

demo: setup ## this machine's map, its paths, a communicator; as root also two hosts and a trap
	@python -m demo $(ARGS)

# On a machine that is busy with all of them, a test may meet a deadline that it does not meet alone; what fails both
# times fails, and so does a run that left something behind.
test: setup-tests ## all tests, three files at a time; what failed beside others runs once more by itself
	@python -m pytest -n $(JOBS) --dist loadscope $(ARGS) || { echo "== once more, one by one: what failed"; \
		python -m pytest --last-failed --last-failed-no-failures none $(ARGS); }

test-etcd: setup-tests ## etcd and daemons killed in turn, for a minute
	@FABRICD_CI=1 FABRICD_KILL_SECONDS=60 python -m pytest tests/e2e/test_etcd_daemons.py tests/e2e/test_etcd_membership.py $(ARGS)

test-mpi4py: setup-tests ## mpi4py's own tests under fabricctl run and under mpiexec; 20 min and more
	@python -m tests.mpi4py_suite $(ARGS)

test-large: setup-tests ## arrays of more than 2**31 elements on two ranks, of 6 GiB each; a minute
	@python -m tests.large_arrays $(ARGS)

test-slurm: setup-tests ## communicators and prologs under a real slurmd, in a Slurm of their own (root, apt); 30 s
	@python -m tests.slurm $(ARGS)

test-systemd: setup-tests ## install, run, crash, upgrade and remove it under a real systemd in namespaces; about 5 min
	@python -m tests.systemd $(ARGS)

test-alerts: setup-tests ## the alert rules by promtool (Debian's, unpacked in build): right, and when each fires; 2 s
	@python -m tests.alerts $(ARGS)

test-container: setup-tests ## the container's image, built by buildah and run as in Kubernetes (root, apt); a minute, the first time 3
	@python -m tests.container $(ARGS)

test-limits: setup-tests ## a daemon in control groups that allow too little memory, and too few tasks (root); a minute
	@python -m tests.limits $(ARGS)

rdma: setup-tests ## RDMA done by software in two virtual machines: probes, daemon, a job over RoCE; about 2 min
	@python -m tests.rdma $(ARGS)

test-schema: setup-tests ## the HTTP interface against its own description, REQUESTS (300) of each kind for each operation
	@SCHEMA_REQUESTS=$(REQUESTS) python -m pytest tests/schema --timeout 1200 $(ARGS)

fuzz: setup-tests ## fuzz what reads others' text and messages, SECONDS (60) for each of the targets; needs atheris
	@python -c 'import atheris' 2>/dev/null || python -m pip install --quiet --no-input -e '.[fuzz]'
	@python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

test-faults: setup-tests ## 100 communicators, to each of which something happens; about 15 min, ARGS="--count 20 --seed 7"
	@python -m tests.faults $(ARGS)

soak: setup-tests ## an hour of a small cluster to which everything bad happens; MINUTES=10 for a short one
	@python -m tests.soak --minutes $(MINUTES) $(ARGS)

load: setup-tests ## how much a daemon answers and how soon, beside nginx; more than it takes; by wrk; about a minute
	@{ command -v wrk && command -v nginx; } >/dev/null || apt-get install -qq --no-install-recommends wrk nginx-light >/dev/null
	@python -m bench.load $(ARGS)

check: setup ## format, lint, types, import contracts
	ruff format --check
	ruff check
	mypy
	lint-imports

bench: setup-tests ## benchmarks that print ratios; BENCH=paths for one of them
	@for name in $(BENCH); do echo "== bench/$$name.py"; python -m bench.$$name $(ARGS) || exit 1; done

bundle: ## dist/fabricd-VERSION.tar.gz, to install from where no package index is reached; PYTHONS="3.11 3.12"
	@deploy/bundle.sh dist

# One version of each package for all versions of Python; what is locked stays as long as pyproject.toml takes it.
# ARGS=--upgrade for the newest.
LOCK = uv pip compile --quiet pyproject.toml --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-package colorama $(ARGS)
lock: setup ## deploy/requirements*.lock, with hashes, after a change of pyproject.toml
	@command -v uv >/dev/null || python -m pip install --quiet uv
	@$(LOCK) --extra daemon --output-file deploy/requirements.lock
	@$(LOCK) --extra cli --extra mpi --output-file deploy/requirements-client.lock

audit: setup ## the locks against the known vulnerabilities of the Python packages; needs the internet
	@command -v pip-audit >/dev/null || python -m pip install --quiet pip-audit
	@pip-audit --strict --disable-pip $(addprefix --requirement ,$(wildcard deploy/requirements*.lock)) $(ARGS)

clean: ## remove .venv, caches and builds
	@flock .venv.lock rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
