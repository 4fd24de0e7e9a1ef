# Cingulum. `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := data/demo
# tests/docs runs it with fewer of both.
DEMO_SUBJECTS ?= 240
DEMO_CHANGES  ?=
SCRIPTS = $(shell find $(wildcard jobs docker slurm tests tools) -name '*.sh' -o -name '*.sbatch')
GATE := -m "not deep"
WORKERS := 2
# Commands of pages run beside tests under mpirun, which wait for a sixth of their time.
BESIDE := 1
# Tests on emulated hosts mostly wait.
WAITING := 4
# What failed is tried once more, alone; failing twice is failing (docs/decisions/0011-tests.md).
# Without exec a shell stands between, and a signal to make ends only that.
pytest = exec $(BIN)/python tools/second_try.py run $(1) -- -n $(or $(3),$(WORKERS)) --dist $(2)
DOCKERFILES := $(wildcard docker/Dockerfile*)

# mpirun refuses root unless told; containers and CI often are root.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-tools demo demo-again test test-unit test-whole test-parallel test-docs test-cluster test-deep test-changed docs check types style format bench bench-peers lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# GPU=1 makes it for GPUs, and so it stays; GPU=0 for CPUs again.
FOR_GPU = $(if $(GPU),--gpu $(GPU))

setup:  ## make .venv with what Cingulum needs (packages, Open MPI, Horovod); GPU=1: for GPUs
	@$(PYTHON) tools/setup_env.py $(FOR_GPU)

setup-tools:
	@$(PYTHON) tools/setup_env.py --tools $(FOR_GPU)

demo: setup  ## cohort, import, training on two ranks, evaluation, report: a few minutes
	$(BIN)/cingulum phantom $(DEMO)/cohort --subjects $(DEMO_SUBJECTS) --size 48 --gap 2 --groups AD,NC --seed 0
	$(BIN)/cingulum import $(DEMO)/cohort $(DEMO)/shards --label diagnosis --size 32
	$(BIN)/mpirun -np 2 $(BIN)/cingulum train examples/demo.yaml --resume $(DEMO_CHANGES)
	$(BIN)/cingulum evaluate runs/demo

demo-again:  ## forget the demo's data and run, and do it all again
	rm -rf $(DEMO) runs/demo
	@$(MAKE) --no-print-directory demo

test: setup-tools  ## what proves the README's promises; at the end, the seconds of each folder and the tests that needed a second try
	@$(BIN)/python tools/second_try.py forget
	@$(BIN)/python tools/second_try.py all test-parallel test-whole test-unit -- test-docs test-cluster

test-unit: setup-tools  ## one thing each, no MPI: minutes
	$(call pytest,tests/unit,loadfile $(GATE))

test-whole: setup-tools  ## trainings, imports, reports, jobs and pages in a browser, without MPI: minutes
	$(call pytest,tests/whole,loadfile --no-loadscope-reorder $(GATE))

test-parallel: setup-tools  ## tests under mpirun: minutes
	$(call pytest,tests/parallel,loadfile --no-loadscope-reorder $(GATE))

test-docs: setup-tools  ## the commands of README: two minutes
	$(call pytest,tests/docs,worksteal $(GATE),$(BESIDE))

test-cluster: setup-tools  ## tests on emulated hosts with Slurm, and in containers (root on Linux, else skipped)
	$(call pytest,tests/cluster,loadfile $(GATE),$(WAITING))

ABOUT := all
test-deep: setup-tools  ## what make test leaves out, all of it or ABOUT=data, slurm, ... (tests/subjects.yaml)
	$(BIN)/python tools/pick_tests.py deep $(ABOUT)

SINCE := origin/main
test-changed: setup-tools  ## all that tests what you changed SINCE=origin/main, by what imports what
	$(BIN)/python tools/pick_tests.py changed $(SINCE)

check: setup-tools  ## lint, format, types, imports, shell scripts, Dockerfiles
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style

docs: setup-tools  ## the documentation as a site: build/site/index.html; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

types: setup-tools
	$(BIN)/mypy

style: setup-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/names.py
	$(BIN)/shellcheck .ci/run $(SCRIPTS)
	$(if $(DOCKERFILES),$(BIN)/hadolint $(DOCKERFILES))

format: setup-tools  ## let ruff format and mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-peers:  ## PyTorch and other loaders for benchmarks/beside_peers.py, in .venv-peers (2 GB)
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -r benchmarks/peers.txt

bench: setup  ## what parallel training costs on this machine
	$(BIN)/cingulum bench step

lock:  ## pin the dependencies of setup.cfg anew (needs uv)
	uv pip compile setup.cfg --universal --python-version 3.10 --fork-strategy requires-python \
	  --extra cpu --extra build --extra dev --no-header --no-annotate --upgrade -o requirements.lock

clean:  ## remove the environment and what tools left (data/ and runs/ stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
