# Needs GNU make and a Python >= 3.11 with venv; everything else is installed into .venv.
# Another interpreter: make PYTHON=/path/to/python3.13 test

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test sweep bench graphs lint clean

PYTHONS := $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python)
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
WORKERS ?= 2
PUBLISHED := B=1,T=1024,V=50257,L=12,d=768,h=12,f=3072

help:
	@echo 'make demo     derive and cross-check examples/gpt.py at the sizes of GPT-2 small'
	@echo 'make test     the whole suite'
	@echo 'make sweep    every classifier and segmentation model of torchvision against its published counts'
	@echo 'make bench    speed, compared with numeric counting'
	@echo 'make graphs   trace examples/ again into graphs/'
	@echo 'make lint     ruff and mypy'
	@echo 'make clean    remove .venv and everything else that was made'

demo: $(VENV)/ready
	$(VENV)/bin/symacct derive examples/gpt.py --at $(PUBLISHED)
	$(VENV)/bin/symacct verify examples/gpt.py

# One thread a worker: more of them only wait for each other.
test: $(VENV)/ready-test
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist worksteal

# torchvision stays out of the environment: beside a CPU build of torch its extension need not load.
sweep: $(VENV)/ready-test
	$(INSTALL) --no-deps --upgrade --target $(VENV)/torchvision torchvision pillow
	PYTHONPATH=$(VENV)/torchvision OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist worksteal sweeps

bench: $(VENV)/ready-test
	$(RUN) -m benchmarks

graphs: $(VENV)/ready-test
	$(VENV)/bin/symacct graphs build

lint: $(VENV)/ready-lint
	$(RUN) -m ruff check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find symacct tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: a stamp for each set of extras, made anew when what is to be installed changes.

$(VENV)/made:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "$$python -m venv $(VENV)"; \
	        $$python -m venv $(VENV) && touch $@; \
	        exit $$?; \
	    fi; \
	done; \
	echo 'symacct needs Python 3.11 or newer with its venv module; name one with: make PYTHON=/path/to/python3.11' >&2; \
	exit 1

# torch comes first and by its exact version, so that a CPU wheel of it that pip is told of serves; the newest
# build, which a plain requirement asks for, brings gigabytes of GPU libraries.
$(VENV)/ready: $(VENV)/made pyproject.toml constraints.txt
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/ready-test: $(VENV)/ready
	$(INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/ready-lint: $(VENV)/ready
	$(INSTALL) --editable '.[lint]'
	@touch $@
