# What a person types. Each command first sets up whatever is still missing.

# Any Python 3 starts the set-up, which then finds the 3.11 that the course needs.
PYTHON3 := $(shell command -v python3 || command -v python3.11)
NO_PYTHON = Python 3.11 is missing. Debian, Ubuntu: sudo apt install python3.11 \
    python3.11-venv; Fedora: sudo dnf install python3.11; macOS: brew install python@3.11

# First on PATH for JupyterLab's terminals and the `!mpirun` lines of notebooks.
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)

.PHONY: help setup lab course test quick bench gpu soak spark cluster lock

help:
	@awk -F ': .*## ' '/^[a-z]+: .*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: ## set up the course's environment in .venv (once; the others do it, too)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/install.py

lab: setup ## open JupyterLab on the first notebook
	@$(BIN)/jupyter lab --allow-root notebooks/00_check_your_machine.ipynb

# Where nobody reads the measured times, two share the cores.
course: setup ## execute all notebooks on this machine and list how they went
	@$(BIN)/course notebooks $(if $(CI),--jobs 2)

test: setup ## run the tests, two files at a time
	@$(BIN)/pytest -n 2 --dist loadfile

quick: setup ## run the tests that take two minutes together
	@$(BIN)/pytest -m "not slow"

bench: setup ## measure how fast training is here (hours; with nothing else running)
	@$(BIN)/course bench

gpu: setup ## where there are GPUs: tests, notebooks, speeds, and a report to send
	@$(BIN)/python -m utils.measure.gpu_report

soak: setup ## run, interrupt and kill at random for 20 minutes; is anything left?
	@$(BIN)/python tests/soak.py --minutes 20

spark: setup ## add Spark for notebook 18 (350 MB; needs Java 8, 11 or 17)
	@$(BIN)/python utils/setup/install_spark.py

# What can't be added is missed by nobody but notebook 18, which says so, as do tests.
cluster: ## add Slurm and sshd for notebook 18 (Debian, Ubuntu; as root)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update --quiet=2 && \
	    DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install --quiet=2 --yes \
	        slurm-wlm munge libpmix-dev openssh-server; \
	else \
	    false; \
	fi || echo "Slurm and sshd were not added: that takes Debian or Ubuntu, and root."

lock: ## bring requirements.lock up to date with requirements.txt (for maintainers)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/setup/lock.py
