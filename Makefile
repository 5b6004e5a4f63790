# Every target does its own set-up in .venv and needs nothing but make and Python 3.11 or later.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-live test-frameworks check format bench bench-closed bench-policy bench-faults bench-crowd bench-sale docs wheel-test ci clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## Make .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "specroute needs Python 3.11 or later on PATH (looked for python3.11, python3.12, python3.13, python3). Install it, or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "$(PYTHON) is not Python 3.11 or later, or does not run." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv/ensurepip module (Debian and Ubuntu: install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version) (torch and transformers: a few minutes the first time)"
	@[ -x $(PY) ] || "$(PYTHON)" -m venv $(VENV)
	@$(PY) -m pip install --disable-pip-version-check --quiet --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## Plain against speculative, side by side, on the bundled models
	@$(PY) -m specroute.cli demo

# WORKERS: in how many processes; 0 for one, without pytest-xdist. What says something about time
# (files marked alone) comes afterwards, by itself.
WORKERS ?= 2
alone = $(shell grep -rlx --include='test_*.py' 'pytestmark = pytest.mark.alone' tests)

test: $(STAMP)  ## The test suite
	@status=0; $(PY) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not alone" || status=$$?; $(PY) -m pytest -q $(sort $(alone)) || status=$$?; exit $$status

# LIVE: which servers (llama, vllm, llama-cpp-python); several in quotes. PROMPTS, TOKENS: how much.
LIVE ?= llama vllm llama-cpp-python
PROMPTS ?= 30
TOKENS ?= 32
live_tests = $(foreach s,$(LIVE),tests/live/test_$(subst -,_,$(s)).py) $(if $(filter vllm,$(LIVE)),tests/live/test_pairs.py)

test-live: $(STAMP)  ## Against real servers on this machine, installed into .cache/live
	@$(PY) tests/live/setup.py $(LIVE)
	@status=0; LIVE_PROMPTS=$(PROMPTS) LIVE_TOKENS=$(TOKENS) $(PY) -m pytest -q $(live_tests) || status=$$?; $(PY) tests/live/table.py; exit $$status

test-frameworks: $(STAMP)  ## instructor, langchain-openai, pydantic-ai through the client, in .cache/frameworks
	@$(PY) tests/frameworks/setup.py
	@$(PY) -m pytest -q -rs tests/frameworks

check: $(STAMP)  ## Lint, format, types and import rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports

format: $(STAMP)  ## Apply the formatter and the fixable lints
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(STAMP)  ## Overhead against its peers, drafting speed, speculation against prediction
	@$(PY) bench/overhead.py --with-litellm
	@$(PY) bench/draft_speed.py
	@$(PY) bench/speculation.py

bench-closed: $(STAMP)  ## Gains on closed APIs, in seconds and dollars
	@$(PY) -m bench.closed

# RUNS: how many random requests.
RUNS ?= 10000

bench-faults: $(STAMP)  ## The fault table beside its peers, a crowd with faults, random runs and what they leave
	@$(PY) bench/faults.py
	@$(PY) bench/fault_crowd.py
	@$(PY) -m tests.faults.runs --runs $(RUNS)

# CROWD: which scenarios and options, as `python -m bench.crowd --help` has them.
CROWD ?=

bench-crowd: $(STAMP)  ## A thousand requests at once in 2 GB: who is answered, how evenly, what is left
	@$(PY) -m bench.crowd $(CROWD)

bench-policy: $(STAMP)  ## What the policies win and lose in virtual time, and whether it holds
	@$(PY) bench/policy.py

bench-sale: $(STAMP)  ## Four times what the target can answer, with and without: docs/benchmarks.md, about 35 minutes
	@$(PY) -m bench.sale --write docs/benchmarks.md; held=$$?; $(PY) -m bench.sale --rise --write docs/benchmarks.md && exit $$held

docs: $(STAMP)  ## Regenerate the generated pages
	@$(PY) -m specroute.cli providers --markdown > docs/providers.md
	@$(PY) -m specroute.telemetry.table docs/telemetry.md

wheel-test: $(STAMP)  ## Build the wheel and test it with the source tree out of reach
	@PY=$(PY) bash .ci/wheel-test

ci:  ## What CI runs
	@bash .ci/run

clean:  ## Remove everything the targets made
	rm -rf $(VENV) .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
