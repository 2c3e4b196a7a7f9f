# raylane: `make serve` serves the demo model on this machine, `make test` tests everything that a quarter of an hour can show.
PYTHON ?= python3.11
EXTRA ?= cpu
SPEC ?=
export PYTHON
RUN := .venv/bin/python -m

.PHONY: help dev install serve test test-fast test-live bench lint lock clean
help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install:         ## install raylane and its engine into .venv (EXTRA=cpu|gpu)
	@infra/install.sh $(EXTRA)

serve: install   ## serve: the demo model, or SPEC=file.yaml; Ctrl-C ends it
	@exec $(RUN) cli.main up $(SPEC)

dev:
	@infra/install.sh dev

lint: dev        ## ruff and mypy over everything
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(RUN) mypy

test-fast: dev   ## the tests that need neither Ray nor an engine (a minute on two cores)
	$(RUN) pytest -m "not live and not long" -q -n 6 --dist worksteal

test: lint test-fast ## everything that gates: lint, fast tests, one live smoke per capability (under 20 minutes)
	$(RUN) pytest -m "live and not long"

test-live: dev   ## the longer live suites: storms, kills, cancellation at scale
	$(RUN) pytest -m long

bench: dev       ## the benchmarks: serving against bare vLLM and ray.serve.llm
	$(RUN) benchmarks.serving

lock:            ## renew the locks from pyproject.toml (needs uv)
	requirements/compile.sh

clean:           ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
