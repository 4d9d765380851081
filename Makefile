# Two commands do everything on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
DEMO ?= demo
STAMP := $(VENV)/.installed
WITH_DOCS := $(VENV)/.installed-docs

# uv where present, pip otherwise; both keep to the versions of constraints.txt. uv does not
# read pip's settings, so a folder of wheels given to pip is passed on.
UV := $(shell command -v uv 2>/dev/null)
ifneq ($(UV),)
CREATE := uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL := VIRTUAL_ENV=$(abspath $(VENV)) uv pip install $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
else
# pip shows how far an installation is from 25.1 on; an older one does it in silence.
CREATE := $(PYTHON) -m venv $(VENV) && { $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' || true; }
INSTALL := $(BIN)/python -m pip install
endif

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): EXTRAS := dev
$(WITH_DOCS): EXTRAS := dev,docs
$(STAMP) $(WITH_DOCS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0])'
	@echo "Creating the environment in $(VENV): about 150 packages, three minutes ..."
	@$(CREATE)
	@$(INSTALL) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $(STAMP) $@

.PHONY: install
install: $(STAMP)  ## Create the environment

.PHONY: demo
demo: $(STAMP)  ## Run the main job on a phantom cohort
	@$(BIN)/python -m bids_gevnet.cli.demo $(DEMO)

.PHONY: test
test: lint  ## Lint, check types and layers, run the tests
# Two processes of two threads each share the cores: threads that spin while they wait would hold up the others.
	@OMP_WAIT_POLICY=PASSIVE PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow' --cov --cov-report=html
	@echo "Branch coverage: $$($(BIN)/coverage report --format=total) %, line by line in htmlcov/index.html"

.PHONY: test-slow
test-slow: $(STAMP)  ## Run the tests that need minutes
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -m slow

.PHONY: what-happens
what-happens: $(STAMP)  ## Write docs/what_happens_when.md
	@PYTHONPATH=tests PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/what_happens.py

.PHONY: boutiques
boutiques: $(STAMP)  ## Write containers/boutiques.json
	@$(BIN)/python -m bids_gevnet.cli.boutiques > containers/boutiques.json

.PHONY: kernels
kernels: $(STAMP)  ## Compile the CPU kernels after a change of theirs
	@$(BIN)/python bids_gevnet/compiled/build.py

.PHONY: lint
lint: $(STAMP)  ## Check style, types, layers and safety
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --silent types

.PHONY: types
types: $(STAMP)
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/bandit --quiet --recursive bids_gevnet workflows

.PHONY: docs
docs: $(WITH_DOCS)  ## Build the documentation into docs/_build
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

.PHONY: image
image:  ## Build the container image
	docker build -t bids_gevnet -t bids_gevnet:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) .

# Each really builds and runs; where a machine cannot, they say "skipped: why" and fail with 77.
.PHONY: check-container
check-container:  ## Build the image and run it
	@containers/check_container.sh

.PHONY: check-apptainer
check-apptainer:  ## Build the Apptainer image and run it
	@containers/check_apptainer.sh

.PHONY: check-slurm
check-slurm: $(STAMP)  ## Run the SLURM scripts on a cluster of two
	@BIN="$(abspath $(BIN))" containers/check_slurm.sh

.PHONY: check-gpu
check-gpu:  ## Compare a GPU with the CPU, time a step
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/check_gpu.py

.PHONY: lock
lock: $(STAMP)  ## Pin the image's packages by hash
	@UV="$$(command -v uv || echo $(BIN)/uv)"; [ -x "$$UV" ] || $(BIN)/python -m pip install --quiet uv; \
	UV="$$UV" containers/lock.sh

.PHONY: clean
clean:  ## Remove the environment, caches and the demo
	rm -rf $(VENV) $(DEMO) docs/_build docs/gallery docs/reference/generated docs/methods/generated .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
