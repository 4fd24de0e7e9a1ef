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
# Tests on emulated hosts mostly wait.
WAITING := 4
# What failed is tried once more, alone; failing twice is failing (docs/decisions/0019-second-try.md).
pytest = $(BIN)/python tools/second_try.py run $(1) -- -n $(or $(3),$(WORKERS)) --dist $(2)
DOCKERFILES := $(wildcard docker/Dockerfile*)

# mpirun refuses root unless told; containers and CI often are root.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-again test test-unit test-whole test-parallel test-cluster test-deep check types style format bench bench-peers lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv with everything (dependencies, Open MPI, Horovod)
	@$(PYTHON) tools/setup_env.py

demo: setup  ## cohort, import, training on two ranks, evaluation, report: a few minutes
	$(BIN)/cingulum phantom $(DEMO)/cohort --subjects $(DEMO_SUBJECTS) --size 48 --gap 2 --groups AD,NC --seed 0
	$(BIN)/cingulum import $(DEMO)/cohort $(DEMO)/shards --label diagnosis --size 32
	$(BIN)/mpirun -np 2 $(BIN)/cingulum train examples/demo.yaml --resume $(DEMO_CHANGES)
	$(BIN)/cingulum evaluate runs/demo

demo-again:  ## forget the demo's data and run, and do it all again
	rm -rf $(DEMO) runs/demo
	@$(MAKE) --no-print-directory demo

test: setup  ## all tests; at the end, the seconds of each folder and the tests that needed a second try
	@$(BIN)/python tools/second_try.py forget
	@$(BIN)/python tools/second_try.py all test-unit test-whole test-parallel -- test-cluster

test-unit: setup  ## one thing each, no MPI: minutes
	$(call pytest,tests/unit,loadfile $(GATE))

test-whole: setup  ## trainings, imports, reports, jobs and pages in a browser, without MPI: minutes
	$(call pytest,tests/whole,loadfile --no-loadscope-reorder $(GATE))

test-parallel: setup  ## tests under mpirun, and the commands of README and tutorials
	$(call pytest,tests/parallel,loadfile --no-loadscope-reorder $(GATE))
	$(call pytest,tests/docs,worksteal $(GATE))

test-cluster: setup  ## tests on emulated hosts with Slurm, and in containers (root on Linux, else skipped)
	$(call pytest,tests/cluster,loadfile $(GATE),$(WAITING))

# What `make test-deep ABOUT=...` runs, by what was changed: CONTRIBUTING.md says which is which.
DEEP_bench      := $(addprefix tests/parallel/test_,bench.py bench_scaling.py peers.py) \
                   $(addprefix tests/cluster/test_,scaling_on_hosts.py peers_on_hosts.py)
DEEP_docs       := tests/docs $(addprefix tests/cluster/test_,testbed_page.py apptainer_hosts.py)
DEEP_runs       := $(addprefix tests/parallel/test_,resume.py attendant.py) tests/cluster/test_preemption.py
DEEP_leases     := tests/unit/test_lease_model.py $(addprefix tests/whole/test_,lease_search.py one_writer.py) tests/cluster/test_one_writer_matrix.py $(DEEP_runs)
DEEP_strategies := $(addprefix tests/parallel/test_,slept.py equivalence.py reductions.py own_script.py guards.py \
                   parameter_server_runs.py async_training.py waking.py other_mpis.py placed_cases.py \
                   placed_memory.py placed_runs.py memory_limit.py edited_plans.py every_cut.py) \
                   tests/cluster/test_openmpi5.py tests/unit/test_hypergraph.py \
                   $(addprefix tests/whole/test_,placed_networks.py profile_command.py)
DEEP_data       := $(addprefix tests/parallel/test_,data_faults.py staging.py patches_on_ranks.py faults.py) \
                   tests/whole/test_fuzz_shards.py
DEEP_tasks      := $(addprefix tests/parallel/test_,tasks_on_ranks.py patches_on_ranks.py)
DEEP_combinations := tests/parallel/test_combinations.py
DEEP_crossval   := $(addprefix tests/parallel/test_,crossval.py crossval_chance.py)
DEEP_models     := tests/whole/test_networks.py
DEEP_explain    := $(addprefix tests/whole/test_explain_,phantoms.py run.py)
DEEP_diagnosis  := $(addprefix tests/parallel/test_,diagnose_slow.py doctor_on_two_ranks.py telemetry.py) \
                   tests/cluster/test_diagnose_hosts.py
DEEP_slurm      := $(addprefix tests/whole/test_,submitters.py hostile_scripts.py commands_killed.py) \
                   $(addprefix tests/cluster/test_,preemption.py cluster_faults.py orphans.py rendered_scripts.py \
                   forgotten_by_slurm.py submit_slurm.py submission_kills.py database_killed.py)
DEEP_launchers  := tests/parallel/test_attendant.py \
                   $(addprefix tests/cluster/test_,mpirun_hosts.py docker.py apptainer.py apptainer_hosts.py)
DEEP_containers := $(addprefix tests/cluster/test_,docker.py apptainer.py apptainer_hosts.py)
DEEP_service    := tests/whole/test_service_fuzzed.py
DEEP_testbed    := $(addprefix tests/cluster/test_,testbed_ends.py testbed_page.py profile_on_hosts.py)
DEEP_all        := tests/unit tests/whole tests/parallel tests/docs tests/cluster
ABOUT           := all
SUBJECTS        := $(sort $(patsubst DEEP_%,%,$(filter DEEP_%,$(.VARIABLES))))

define deep
$(if $(1),$(call pytest,$(1),$(if $(filter tests/docs,$(1)),worksteal,loadfile) -m "deep or drawn"))

endef

test-deep: export CINGULUM_DEEP := 1
test-deep: setup  ## what make test leaves out, all of it or ABOUT=data, slurm, ... (CONTRIBUTING.md)
	$(if $(DEEP_$(ABOUT)),,$(error ABOUT=$(ABOUT): known are $(SUBJECTS)))
	$(foreach folder,unit whole parallel docs cluster,$(call deep,$(filter tests/$(folder) tests/$(folder)/%,$(DEEP_$(ABOUT)))))

check: setup  ## lint, format, types, imports, shell scripts, Dockerfiles
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style

types: setup
	$(BIN)/mypy

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/shellcheck .ci/run $(SCRIPTS)
	$(if $(DOCKERFILES),$(BIN)/hadolint $(DOCKERFILES))

format: setup  ## let ruff format and mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-peers:  ## PyTorch and other loaders for `cingulum bench` to compare with, in .venv-peers (2 GB)
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -r benchmarks/peers.txt

bench: setup  ## what parallel training costs on this machine
	$(BIN)/cingulum bench step

lock:  ## pin the dependencies of setup.cfg anew (needs uv)
	uv pip compile setup.cfg --universal --python-version 3.10 --fork-strategy requires-python \
	  --extra cpu --extra build --extra dev --no-header --no-annotate --upgrade -o requirements.lock

clean:  ## remove the environment and what tools left (data/ and runs/ stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
