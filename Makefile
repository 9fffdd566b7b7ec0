# What a person types. Each command first sets up whatever is still missing.

# Any Python 3 starts the set-up, which then finds the 3.11 that the course needs.
PYTHON3 := $(shell command -v python3 || command -v python3.11)
NO_PYTHON = Python 3.11 is missing. Debian, Ubuntu: sudo apt install python3.11 \
    python3.11-venv; Fedora: sudo dnf install python3.11; macOS: brew install python@3.11

# First on PATH for JupyterLab's terminals and the `!mpirun` lines of notebooks.
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)

.PHONY: help setup lab course test quick bench lock

help:
	@awk -F ': .*## ' '/^[a-z]+: .*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: ## set up the course's environment in .venv (once; the others do it, too)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/install.py

lab: setup ## open JupyterLab on the first notebook
	@$(BIN)/jupyter lab --allow-root notebooks/00_check_your_machine.ipynb

course: setup ## execute all notebooks on this machine and list how they went
	@$(BIN)/course notebooks

test: setup ## run the tests
	@$(BIN)/pytest

quick: setup ## run the tests that take two minutes together
	@$(BIN)/pytest -m "not slow"

bench: setup ## measure how fast training is here (hours; with nothing else running)
	@$(BIN)/course bench

lock: ## bring requirements.lock up to date with requirements.txt (for maintainers)
	@$(or $(PYTHON3),$(error $(NO_PYTHON))) utils/lock.py
