# What a person types. Each command first sets up whatever is still missing.

# Any Python 3 starts the set-up, which then finds the one that the course is built on.
PYTHON3 := $(shell for name in python3.13 python3.12 python3.11 python3.10 python3; do \
    $$name -c "" 2> /dev/null && echo $$name && break; done)
NO_PYTHON = Python is missing. Debian, Ubuntu: sudo apt install python3 python3-venv; \
    Fedora: sudo dnf install python3.12; macOS: brew install python@3.12

# First on PATH for JupyterLab's terminals and the `!mpirun` lines of notebooks.
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)

# Adds packages to a Debian or Ubuntu as root; elsewhere says what is left out.
add = if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
        apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive timeout 300 \
            apt-get install --quiet=2 --yes $(1); \
    else \
        false; \
    fi || echo "$(2) not added: that takes Debian or Ubuntu, and root."

.PHONY: help setup lab course crowd site screenshots test quick bench gpu soak wheel spark jax torch xprof cluster sandbox browser types headers systems gpu-build peers image lock

help:
	@awk -F ': .*## ' '/^[a-z-]+: .*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## set up the course's environment in .venv (once; the others do it, too)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py

lab: setup ## open JupyterLab on the first notebook
	@$(BIN)/jupyter lab --allow-root notebooks/00_check_your_machine.ipynb

# Where nobody reads the measured times, three share the cores: one often waits.
course: setup jax xprof ## execute all notebooks on this machine and list how they went
	@$(BIN)/course notebooks $(if $(CI),--jobs 3)

# What is wrong with more workers than two, and isn't just slow.
crowd: setup ## execute lessons 03 to 09 and 15 to 17 with 3 workers, then 8, on however few cores (hours)
	@for workers in 3 8; do \
	    COURSE_PROFILE=ci DISTCHECK_PRETEND=workers=$$workers $(BIN)/course notebooks \
	        03 04 05 06 07 08 09 15 16 17 || failed=1; \
	done; exit $${failed:-0}

site: setup ## build the site from what `make course` executed
	@$(BIN)/python site/build.py

screenshots: setup ## take the pictures of site and handbook anew (after make site; takes Chromium)
	@$(BIN)/python site/screenshots.py

test: setup ## run the tests, three files at a time
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

quick: setup ## run the tests that take two minutes together
	@$(BIN)/pytest -m "not slow"

bench: setup ## measure how fast training is here (hours; with nothing else running)
	@$(BIN)/course bench

gpu: setup jax xprof ## where there are GPUs: tests, notebooks, speeds, and a report to send
	@$(BIN)/python tests/gpu_report.py

soak: setup ## kill runs, checks and audits at random for half an hour; is anything left?
	@KILLS=200 $(BIN)/pytest -s tests/test_kills.py

wheel: setup ## keep the Horovod that was built, for other machines: wheels/
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py wheel

spark: ## add Spark for lesson 24 (400 MB; needs Java 17 or 21)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py spark

jax: ## add Keras 3 with JAX for lesson 30, in .venv-jax (160 MB)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py jax

# The package index has PyTorch for Linux with CUDA only.
torch: ## add PyTorch for lesson 30, in .venv-torch (3 GB on Linux)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py torch

xprof: ## add TensorBoard's profiler for lesson 19, in .venv-xprof (140 MB)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py xprof

# What can't be added is missed by nobody but lessons 23 and 26, which say so, as do tests.
# Not each of these systems has AWS's command line.
cluster: ## add Slurm, sshd and aws for lessons 23 and 26 (Debian, Ubuntu; as root)
	@$(call add,slurm-wlm munge libpmix-dev openssh-server \
	    $$(apt-cache --names-only search '^awscli$$' | cut --delimiter ' ' --fields 1),\
	    Slurm and sshd were)

# Without it `course grade` says so and grades nothing; its tests are skipped.
sandbox: ## add bubblewrap, in which `course grade` runs programs (Debian, Ubuntu; as root)
	@$(call add,bubblewrap,bubblewrap was)

# A look at the site is skipped where it can't be added.
browser: ## add Chromium, in which tests look at the site (Debian; as root)
	@$(call add,--no-install-recommends chromium fonts-dejavu-core,Chromium was)

# With its Node it takes 280 MB, and no learner needs it.
types: setup ## add basedpyright, with which tests check the types in distcheck
	@PATH="$$PATH:$(BIN)/../.setup/uv/bin" uv pip install --quiet --require-hashes \
	    --python $(BIN)/python --requirements requirements-types.lock

# Systems other than this one, made of Debian's packages: tests/systems.py.
headers: setup ## let the newest g++ that Debian has read Horovod's headers (as root)
	@$(call add,mmdebstrap,mmdebstrap was)
	@$(PYTHON3) tests/systems.py headers

systems: ## set up in a Debian 13 and testing, with each compiler (as root; two hours)
	@$(call add,mmdebstrap,mmdebstrap was)
	@$(PYTHON3) tests/systems.py systems

gpu-build: ## build Horovod for GPUs where there is none, and look at it (as root; 30 min)
	@$(call add,mmdebstrap,mmdebstrap was)
	@$(PYTHON3) tests/systems.py gpu-build

# Horovod's own tests, which its source release leaves out: the folder `test` of its
# repository at v0.28.1. Two workers share each test; the elastic ones start their own.
# The one left out compares a float16 of 0 with 1e-8, which is 0 there since numpy 2.
PEERS = ../shared/peers/horovod-0.28.1/test
PEERS_OF_TWO = tensorflow tensorflow_keras tensorflow2_keras tensorflow_process_sets \
    tensorflow2_keras_process_sets
PEER_TEST = $(BIN)/python -m pytest -p no:randomly -p no:cacheprovider -rfEs \
    -k "not reducescatter_grad_cpu_process_sets"

peers: setup ## run Horovod's own tests against the Horovod that was built
	@test -d $(PEERS) || { echo "PEERS=FOLDER: where is Horovod's folder 'test'?"; exit 2; }
	@export TF_USE_LEGACY_KERAS=1 PYTHONDONTWRITEBYTECODE=1; \
	export HOROVOD_GLOO_TIMEOUT_SECONDS=60; cd $(PEERS); status=0; \
	for name in $(PEERS_OF_TWO); do \
	    mpirun -np 2 --oversubscribe --bind-to none \
	        $(PEER_TEST) parallel/test_$$name.py || status=1; done; \
	$(PEER_TEST) integration/test_elastic_tensorflow2.py || status=1; exit $$status

# podman, docker or buildah; BUILD and RUN: what else theirs are to be told.
CONTAINERS = podman

image: setup ## build the course's image and try it: make image CONTAINERS=docker
	@$(CONTAINERS) build --tag course $(BUILD) .
	@COURSE_IMAGE=course COURSE_CONTAINERS="$(CONTAINERS) $(RUN)" \
	    $(BIN)/pytest tests/test_container.py

# The newest versions that requirements.txt allows, the same for every Python and
# platform of the course, with hashes and without addresses.
UV := PATH="$$PATH:$(BIN)/../.setup/uv/bin" uv pip compile --quiet --upgrade --universal \
    --python-version 3.10 --fork-strategy fewest --generate-hashes \
    --no-header --no-annotate --no-emit-index-url

lock: setup ## bring the lock files up to date with requirements*.txt (for maintainers)
	@$(UV) requirements.txt --output-file requirements.lock
	@for extra in spark jax torch xprof types; do \
	    $(UV) requirements-$$extra.txt --constraints requirements.lock \
	        --output-file requirements-$$extra.lock || exit; done
	@$(BIN)/python tests/conda.py
