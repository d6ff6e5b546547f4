# Every target makes its own virtual environment when there is none. Needed: Python 3.11 or newer, pip, make.

PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif

# What `make train` trains, and how. With one of the six variables below and no TRAIN_ENV it is the Game Boy, else cards.
TRAIN_ENV ?=
TRAIN_STEPS ?=
TRAIN_ENVS ?=
TRAIN_EPISODE_LENGTH ?=
TRAIN_UPDATE_EPOCHS ?=
TRAIN_BATCH_SIZE ?=
# A directory of runs: each gets a directory of its own in it, named after env and time.
TRAIN_OUTPUT_DIR ?=
TRAIN_FLAGS ?=

# What `make compare` runs, twice: Procgen's coinrun (or TRAIN_ENV) for DURATION hours, in one process, then with workers.
DURATION ?= 0.017
COMPARE_WORKERS ?= 2
COMPARE_ENVS_PER_WORKER ?= 4
COMPARE_CONFIG ?= config/ppo_parallel.yaml
COMPARE_SEED ?= 1
COMPARE_DIR ?=

# Processes that run tests. Many tests wait for something, so one more than there are cores.
TEST_PROCESSES ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1 )))

# The commit that `make snapshot` compares with.
BASE ?= HEAD
SNAPSHOT_FLAGS ?=

# For how many minutes `make chaos` kills processes of runs, and its other flags.
MINUTES ?= 5
CHAOS_FLAGS ?=

# What a target installs besides Corral itself: the extras of pyproject.toml that its env needs.
GAME_BOY_VARIABLES := $(strip $(TRAIN_STEPS) $(TRAIN_ENVS) $(TRAIN_EPISODE_LENGTH) $(TRAIN_UPDATE_EPOCHS) $(TRAIN_BATCH_SIZE) $(TRAIN_OUTPUT_DIR))
train_env := $(or $(TRAIN_ENV),$(if $(GAME_BOY_VARIABLES),game-boy,card-battle))
extra_of = $(strip $(if $(filter game-boy,$1),gameboy) $(if $(filter territory,$1),territory) \
	$(if $(filter envpool:%,$1),procgen) $(if $(filter ALE/%,$1),atari))
installed_for = $(VENV)/.installed-$(or $(call extra_of,$1),base)

.DEFAULT_GOAL := help
.PHONY: help setup train train-20k train-parallel train-pure-rl rom compare test test-deep test-faults test-ray chaos snapshot check lint type format bench bench-quick clean

help:
	@echo "make train    train PPO on the card game (TRAIN_ENV=... TRAIN_STEPS=... TRAIN_ENVS=... TRAIN_FLAGS='--seed 1')"
	@echo "make train-20k  train on the Game Boy: 20,000 steps, 2 envs; also train-parallel and train-pure-rl (TRAIN_EPISODE_LENGTH=...)"
	@echo "make train-parallel DURATION=1  train coinrun with workers for an hour"
	@echo "make compare  train Procgen's coinrun in one process, then with $(COMPARE_WORKERS) workers, and compare (TRAIN_ENV=... DURATION=hours)"
	@echo "make test     run the tests; test-deep: those that take long; test-faults: all about what may go wrong"
	@echo "make test-ray run the tests on clusters of several nodes (Linux, as root: they make network namespaces)"
	@echo "make chaos    kill workers and trainers at random for a while, and compare the weights (MINUTES=5)"
	@echo "make snapshot BASE=commit  train small runs with that commit and with this code, and compare (SNAPSHOT_FLAGS=--short)"
	@echo "make check    lint, types and tests: what a change must pass"
	@echo "make rom      build the Game Boy game again from its source (needs SDCC: apt install sdcc)"
	@echo "make setup    install everything into $(VENV)"
	@echo "make bench    measure speed and learning again, into benchmarks/ (over an hour); bench-quick: speed, roughly"
	@echo "make lint | type | format | clean"

setup: $(VENV)/.installed-dev

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Corral needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Sizes are those of the whole virtual environment.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.venv
	@echo "installing Corral$(if $(filter base,$*),, and what '$*' adds) into $(VENV), once ($(size_$*)) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.$(if $(filter base,$*),,[$*])'
	@touch $@ $(if $(filter dev,$*),$(foreach extra,base gameboy territory procgen atari,$(VENV)/.installed-$(extra)))

size_base := 1.2 GB, one to three minutes
size_gameboy := 1.4 GB, one to three minutes
size_territory := 1.4 GB, one to three minutes
size_atari := 1.4 GB, one to three minutes
size_procgen := 2.1 GB, two to four minutes
size_dev := 3 GB, two to five minutes

OUTPUT_ARGS = $(if $(TRAIN_OUTPUT_DIR),--output-dir "$(TRAIN_OUTPUT_DIR)/$(subst :,-,$(subst /,-,$1))-$(shell date +%Y%m%d-%H%M%S)")

TRAIN_ARGS = $(if $(TRAIN_STEPS),--timesteps $(TRAIN_STEPS)) $(if $(TRAIN_ENVS),--n-envs $(TRAIN_ENVS))
TRAIN_ARGS += $(if $(TRAIN_EPISODE_LENGTH),--episode-length $(TRAIN_EPISODE_LENGTH))
TRAIN_ARGS += $(if $(TRAIN_UPDATE_EPOCHS),--n-epochs $(TRAIN_UPDATE_EPOCHS))
TRAIN_ARGS += $(if $(TRAIN_BATCH_SIZE),--batch-size $(TRAIN_BATCH_SIZE))
train: game_boy = 200000 1 500 4
train: $(call installed_for,$(train_env))
ifeq ($(TRAIN_ENV)$(train_env),game-boy)
	@echo "training on the Game Boy, because one of its variables is set; choose another env with TRAIN_ENV=card-battle"
	$(BIN)/corral train game-boy $(strip $(GAME_BOY_ARGS))
else
	@echo "training on $(train_env); choose another env with TRAIN_ENV=game-boy, territory, CartPole-v1, ..."
	$(BIN)/corral train $(train_env) $(strip $(if $(TRAIN_ENVS),,--n-envs 8) $(TRAIN_ARGS) $(call OUTPUT_ARGS,$(train_env)) $(TRAIN_FLAGS))
endif

# On the Game Boy, with a line for every episode. A variable that is given comes before these.
train-20k: game_boy = 20000 2 750 6
train-parallel: game_boy = 5000 2 500 4 --backend worker
train-pure-rl: game_boy = 100000 1 500 4
GAME_BOY_ARGS = --timesteps $(or $(TRAIN_STEPS),$(word 1,$(game_boy))) --n-envs $(or $(TRAIN_ENVS),$(word 2,$(game_boy)))
GAME_BOY_ARGS += --episode-length $(or $(TRAIN_EPISODE_LENGTH),$(word 3,$(game_boy)))
GAME_BOY_ARGS += --n-epochs $(or $(TRAIN_UPDATE_EPOCHS),$(word 4,$(game_boy)))
GAME_BOY_ARGS += --batch-size $(or $(TRAIN_BATCH_SIZE),128) --n-steps 256 --log-episodes
GAME_BOY_ARGS += $(wordlist 5,9,$(game_boy)) $(call OUTPUT_ARGS,game-boy) $(TRAIN_FLAGS)

# `make train-parallel DURATION=1` trains coinrun, or TRAIN_ENV, with workers for an hour.
timed_parallel := $(and $(filter train-parallel,$(MAKECMDGOALS)),$(filter-out file,$(origin DURATION)))

ifeq ($(timed_parallel),)
train-20k train-parallel train-pure-rl: $(VENV)/.installed-gameboy
	@test "$(or $(TRAIN_ENV),game-boy)" = game-boy || \
		{ echo "make $@ is for the Game Boy; use: make train TRAIN_ENV=$(TRAIN_ENV)" >&2; exit 2; }
	$(BIN)/corral train game-boy $(strip $(GAME_BOY_ARGS))
else
train-parallel: $(call installed_for,$(or $(TRAIN_ENV),envpool:CoinrunEasy-v0))
	$(BIN)/python examples/train_parallel_timed.py $(if $(TRAIN_ENV),--env $(TRAIN_ENV)) --duration $(DURATION) \
		$(strip $(TRAIN_ARGS) $(call OUTPUT_ARGS,parallel) $(TRAIN_FLAGS))
endif

rom: setup
	$(BIN)/python src/corral_games/game_boy/rom/build.py

# The same env, envs, settings and seed for both; only who steps differs.
COMPARE_ARGS = $(if $(TRAIN_ENV),--env $(TRAIN_ENV)) --duration $(DURATION) --config $(COMPARE_CONFIG) --seed $(COMPARE_SEED)

compare: $(call installed_for,$(or $(TRAIN_ENV),envpool:CoinrunEasy-v0))
	@dir="$(COMPARE_DIR)"; dir="$${dir:-runs/compare-$$(date +%Y%m%d-%H%M%S)}"; \
	envs=$$(($(COMPARE_WORKERS) * $(COMPARE_ENVS_PER_WORKER))); set -ex; \
	$(BIN)/python examples/train_timed.py $(COMPARE_ARGS) --n-envs $$envs --output-dir "$$dir/sequential"; \
	$(BIN)/python examples/train_parallel_timed.py $(COMPARE_ARGS) --num-workers $(COMPARE_WORKERS) \
		--num-envs-per-worker $(COMPARE_ENVS_PER_WORKER) --output-dir "$$dir/parallel"; \
	$(BIN)/python examples/compare_results.py --sequential "$$dir/sequential" --parallel "$$dir/parallel" --output "$$dir"

test: setup
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

test-deep: setup
	$(BIN)/python -m pytest -m deep --ignore tests/ray -n $(TEST_PROCESSES) --dist worksteal

test-faults: setup
	$(BIN)/python -m pytest tests/faults -m "deep or not deep" -n auto --dist worksteal

test-ray: setup
	$(BIN)/python -m pytest tests/ray -m "deep or not deep"

chaos: setup
	$(BIN)/python -m tests.faults.chaos --minutes $(MINUTES) $(CHAOS_FLAGS)

snapshot: setup
	$(BIN)/python -m tests.snapshot --base $(BASE) $(SNAPSHOT_FLAGS)

check: lint type test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

type: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/overlap.py
	$(BIN)/python benchmarks/sample_efficiency.py

bench-quick: setup
	$(BIN)/python benchmarks/throughput.py --repeats 2 --seconds 1.5 --output build/bench-quick

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
