# `make help` lists what there is. Every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest -n auto

.DEFAULT_GOAL := help
.PHONY: help setup demo wheel test test-portable test-gpu tables docs lint format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the pinned packages of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else \
		"Python 3.11 to 3.13 is needed, this is %d.%d: make PYTHON=python3.11 ..." % v)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages into $(VENV) (a minute)"
	@$(PY) -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## train luna, linear and softmax on a small ListOps and print one table (4 minutes)
	@for attention in luna linear softmax; do \
		$(PY) train.py experiment=demo attention=$$attention || exit 1; echo; done
	@$(VENV)/bin/lra table --runs runs/demo

test: $(STAMP) ## run the tests; one method's with K=name
	@$(PYTEST) $(if $(K),-k '$(K)')

test-portable: $(STAMP) ## run the numerical tests as on other processors, in other surroundings
	@scripts/portable.sh

test-gpu: $(STAMP) ## run the tests that need a CUDA device
	@$(PY) -m pytest -m gpu

first-hour: ## on a GPU: tests, correctness, speed, full runs; repeat it until it says done
	@PYTHON=$(if $(wildcard $(PY)),$(PY),$(PYTHON)) scripts/first_hour.sh

tables: $(STAMP) ## tables, page and figures of results/ from its records; the catalogue of docs/attentions.md
	@$(VENV)/bin/lra list --write
	@$(VENV)/bin/lra figures records
	@$(VENV)/bin/lra table --write

docs: $(STAMP) ## the pages and the API reference as a static site: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

lint: $(STAMP) ## ruff (lint and format) and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: $(STAMP) ## apply ruff's fixes and format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

wheel: $(STAMP) ## build the source archive and the wheel into dist/
	@$(PY) -m hatchling build

clean: ## remove the environment, caches and site, never data or runs
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis dist site
