# raylane: `make serve` serves the demo model on this machine, `make test` runs what gates a change.
PYTHON ?= python3.11
EXTRA ?= cpu
SPEC ?=
TRACES ?= ../shared/data/traces
FAST ?=
export PYTHON
# A run starts hundreds of processes, each of which would compile raylane and its tests anew where the environment forbids to keep bytecode.
unexport PYTHONDONTWRITEBYTECODE
RUN := .venv/bin/python -m

.PHONY: help dev install serve test test-fast test-whole test-live mutants next-vllm bench lint lock sbom audit clean
help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install:         ## install raylane and its engine into .venv (EXTRA=cpu|gpu; FAST=1 also compiles what simulate, tune and plan run)
	@infra/install.sh $(EXTRA)
	@if [ "$(FAST)" = 1 ]; then infra/compile.sh; fi

serve: install   ## serve: the demo model, or SPEC=file.yaml; Ctrl-C ends it
	@exec $(RUN) cli.main up $(SPEC)

dev:
	@infra/install.sh dev

lint: dev        ## ruff and mypy over everything
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(RUN) mypy

# Several processes on few cores: one thread of BLAS each, or they spin while they wait for each other. Each imports all tests, so not those that need Ray.
SPREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(RUN) pytest -q --dist worksteal --ignore=tests/smoke --ignore=tests/live

# Collected once before: four processes that begin together would each compile all of the tests. What is wrong is told by the run itself.
test-whole: dev
	@$(RUN) pytest --collect-only -q -m "not long" > /dev/null 2>&1 || true
	$(SPREAD) -n 4 -m "not live and not long"

test-fast: dev   ## the tests that need neither Ray nor an engine, less those that take seconds (two minutes)
	$(SPREAD) -n 3 --hypothesis-profile=fast -m "not live and not long and not whole"

test: dev        ## everything that gates: lint, all tests without Ray, one live smoke per capability (about 20 minutes)
	$(MAKE) --no-print-directory -j 2 lint test-whole
	$(RUN) pytest -m "live and not long" --durations=15

test-live: dev   ## the longer live suites: storms, kills, cancellation at scale; and mutants
	$(RUN) pytest -m long
	$(MAKE) mutants

mutants: dev     ## draws 300 mutants of the scheduler and of ownership; fails when the tests kill under 90 % (SEED=n repeats a draw)
	$(RUN) tests.mutation $(if $(SEED),--seed $(SEED))

next-vllm:       ## the contract tests against the newest vLLM (or VLLM=x.y.z), in .venv-next
	@infra/next_vllm.sh $(VLLM)
	.venv-next/bin/python -m pytest -m contract

bench: dev       ## the benchmarks: serving against bare vLLM and ray.serve.llm; what tune promises on traffic not seen (TRACES=folder)
	$(RUN) benchmarks.serving
	$(RUN) benchmarks.tune $(TRACES)

lock:            ## renew the locks from pyproject.toml (needs uv)
	requirements/compile.sh

sbom:            ## bills of materials of the images (CycloneDX), into dist/
	@infra/sbom.sh

audit:           ## look up known vulnerabilities of what the images install; status 3 where no advisories can be had
	@"$$(infra/tools.sh bom)/python" infra/audit.py

clean:           ## remove the virtual environment and caches
	rm -rf .venv .venv-next .venv-tools .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
