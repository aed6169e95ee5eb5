# Everything that is done with warren, one word each. `make` alone says what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 3 --max-worker-restart 3

unexport PYTHONDONTWRITEBYTECODE # tests start a thousand processes, which would compile everything anew

.DEFAULT_GOAL := help
.PHONY: help install test test-all nightly test-clients lint format docs demo bench bench-peers clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## set up .venv with warren and all that its tests need

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

test: install  ## run the tests that find most mistakes, in three minutes
	$(PYTEST) -m "not slow and not broker and not cluster"

test-all: install  ## run all tests: with brokers, a Spark cluster, all kills
	WARREN_EFFORT=full $(PYTEST)

nightly: install  ## search for hours: crashes, faults, kills, schedules, hostile files; counts go to docs/tried.json
	WARREN_EFFORT=nightly WARREN_TRIED=docs/tried.json $(PYTEST) -m counted -o faulthandler_timeout=3600

test-clients: install  ## run other people's clients' tests on a real RabbitMQ and on warren serve
	$(BIN)/python -m tests.clients

lint: install  ## check format, style, types, and for what is unsafe in our code and known of others'
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml warren actors queue_index msg_store storage
	$(BIN)/python -m tests.support.audit

format: install  ## put the code into the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install  ## build the documentation's site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

demo: install  ## run the main job, watched
	$(BIN)/python -m examples.demo

bench: install  ## measure, and draw the plot in docs/
	$(BIN)/python -m benchmarks

bench-peers: install  ## measure warren and its peers on the same work, in half an hour
	$(BIN)/python -m benchmarks.peers

clean:  ## forget what was set up
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
