# `make help` lists what there is. Every target sets up what it needs.
SUPPORTED := import sys; sys.exit(not (3, 11, 5) <= sys.version_info < (3, 14))
# python3, or one beside it where that is too old or too new; `make PYTHON=... setup` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && exit; done; echo python3)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# What a run needs is part of everything.
RUN_STAMP := $(or $(wildcard $(STAMP)),$(VENV)/.installed-run)
# Each process is given a stretch of the suite, so that what a file's tests share is made once.
PYTEST := $(PY) -m pytest -n auto --dist worksteal
# SHARD=2/4 is one of four parts of the tests.
SHARDED = $(if $(SHARD),--shard $(SHARD))

.DEFAULT_GOAL := help
.PHONY: no-python help setup demo lock test test-luna test-lra test-rest test-all test-portable test-gpu gpu-quarter golden tables reference pictures docs sheet lint format wheel release clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the locked packages, also those of tests, pages and launchers

$(STAMP): LEVEL := dev
$(VENV)/.installed-run: LEVEL := run
# Also where its Python is gone, say after an upgrade of the system.
$(STAMP) $(VENV)/.installed-run: pyproject.toml constraints.txt requirements.lock scripts/setup.py \
		$(shell test -x $(PY) || echo no-python)
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "Python 3.11.5 to 3.13 is needed, and $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo not there):" \
			"install one, or name it: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) scripts/setup.py $(VENV) $(LEVEL)
	@touch $@

demo: $(RUN_STAMP) ## train luna, linear and softmax on a small ListOps and print one table (2 minutes, set-up included)
	@for attention in luna linear softmax; do \
		$(PY) train.py experiment=demo attention=$$attention || exit 1; echo; done
	@$(VENV)/bin/lra table --runs runs/demo

test: $(STAMP) ## run the tests, 20 minutes on two cores; all of one method's with K=name
	@$(PYTEST) $(if $(K),-k '$(K)',-m 'not rest') $(SHARDED)

test-luna: $(STAMP) ## run the tests of luna/ alone, which need neither lra/ nor configs/
	@$(PYTEST) tests/luna $(if $(K),-k '$(K)',-m 'not rest')

test-lra: $(STAMP) ## run the tests of lra/ and its golden runs, which need no results/
	@$(PYTEST) tests/lra tests/golden tests/hydra_plugins $(if $(K),-k '$(K)',-m 'not rest')

test-rest: $(STAMP) ## run the tests that `make test` leaves out, most of an hour
	@$(PYTEST) -m rest $(SHARDED)

test-all: $(STAMP) ## run all tests
	@$(PYTEST) $(SHARDED)

test-portable: $(STAMP) ## run the numerical tests as on other processors, in other surroundings
	@scripts/portable.sh

test-gpu: $(STAMP) ## run the tests that need a CUDA device
	@$(PY) -m pytest -m gpu

gpu-quarter: ## on a GPU, in 9 minutes: its tests, its speed, then full runs; repeat it until none is left
	@$(if $(wildcard $(PY)),$(PY),$(PYTHON)) scripts/study/gpu_quarter.py

golden: $(STAMP) ## keep the numbers of methods and parts whose integer was raised; NAME=linear: of one
	@$(PY) -m tests.golden write $(NAME)

tables: $(STAMP) ## tables, figures and pages of results/ from its records; the catalogue of docs/attentions.md
	@$(VENV)/bin/lra list --write
	@$(VENV)/bin/lra figures records
	@$(VENV)/bin/lra table --write

reference: $(STAMP) ## the times of lra/reference, which `lra plan` shows, from the records of results/
	@$(PY) scripts/study/step_times.py

pictures: $(STAMP) ## draw the pictures of results/ again: of tables, schemes, and of this study
	@$(VENV)/bin/lra figures records
	@$(PY) scripts/study/scheme.py
	@$(PY) scripts/study/pictures.py
	@$(PY) scripts/study/theory/trained.py

docs: $(STAMP) ## the pages and the API reference as a static site: site/index.html
	@$(VENV)/bin/lra table --page results/index.html
	@$(PY) scripts/docs_site.py prepare build/pages
	@# Not --quiet, which also keeps it from counting the warnings that shall end it.
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build 2>build/log || { cat build/log; exit 1; }
	@$(PY) scripts/docs_site.py check site

sheet: docs ## pictures of all that is seen, README, pages, terminal, figures, in build/sheet (needs Chromium)
	@$(PY) -m scripts.sheet

lint: $(STAMP) ## ruff (lint and format) and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: $(STAMP) ## apply ruff's fixes and format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

wheel: $(RUN_STAMP) ## build the source archive and the wheels of luna-lra and luna-attention into dist/
	@$(PY) -m hatchling build
	@cd packages/luna-attention && $(abspath $(PY)) -m hatchling build -t wheel -d $(CURDIR)/dist

release: $(STAMP) ## hold version, changelog, citation and a clean tree together, then run all tests
	@$(PY) scripts/release.py
	@$(MAKE) test-all

lock: ## requirements.lock and constraints.txt anew, after a change of pyproject.toml or of a pin
	@$(or $(wildcard $(PY)),$(PYTHON)) scripts/lock.py

clean: ## remove the environment, caches and site, never data or runs
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist site
