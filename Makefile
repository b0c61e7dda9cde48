# make serve | test | check | bench; each makes what it needs in .venv, and only what has changed.
#
#   make serve ARGS="--port 9000 --max-seqs 64"   options of `headway serve`
#   make serve MODEL=path/to/model.gguf           another model
#   make test TESTS=tests/core                    some of the tests
#   make test PYTHON=python3.12                   another Python, for a new .venv
#   make test-vllm VLLM_VERSION=0.31.0            another version of vLLM, in .venv-vllm-0.31.0

VENV := .venv
VLLM_VERSION ?=
VLLM_VENV := .venv-vllm$(VLLM_VERSION:%=-%)
TORCH ?= torch==2.13.0
TRITON ?= triton==3.8.0
LLAMA_CPP_VENV := .venv-llama-cpp
OPENVINO_VENV := .venv-openvino
XLLAMACPP ?= xllamacpp==2026.10.11549
OPENVINO_GENAI ?= openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 openvino==2026.4.1
BIN := $(VENV)/bin
MODEL ?=
ARGS ?=
TESTS ?=
export PYTHON

CHROMIUM := $(firstword $(shell command -v chromium chromium-browser google-chrome))
NPM := $(shell command -v npm)
CLIENTS := tests/clients/node_modules/.package-lock.json
WEB := $(if $(CHROMIUM),$(VENV)/.web) $(if $(NPM),$(CLIENTS))

# Under sanitizers: what touches memory in every way, less what only waits for large steps.
SANITIZED := tests/native/test_activations.py tests/native/test_gemm.py tests/native/test_plans.py \
	tests/native/test_sampling.py tests/native/test_invariance.py tests/executors \
	-k "not (times_out or stops_at_a_layer or lanes_run_at_once or close_ends or llama-)"

SANITIZE = sh scripts/sanitize $(VENV) address,undefined $(SANITIZED) && \
	sh scripts/sanitize $(VENV) address,undefined bench/stress.py --seconds 8

PARALLEL := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 15

NATIVE := CMakeLists.txt $(shell find native -type f 2>/dev/null)

# Interpreters with the peers in them. One that is given is taken as it is, and one given as nothing
# leaves its peer out; the others' environments are made.
LLAMA_CPP = $(LLAMA_CPP_VENV)/bin/python
OPENVINO = $(OPENVINO_VENV)/bin/python
VLLM = $(VLLM_VENV)/bin/python
made-here = $(if $(filter file,$(origin $(1))),$(2))
PEER_ENVIRONMENTS = $(call made-here,LLAMA_CPP,$(LLAMA_CPP_VENV)/.peer) \
	$(call made-here,OPENVINO,$(OPENVINO_VENV)/.peer) $(call made-here,VLLM,$(VLLM_VENV)/.vllm)
ROUNDS ?= 3
SECONDS ?= 60
PARTS ?= raw,mixed,footprint
Q4_0 ?=
HF ?=

.DEFAULT_GOAL := help
.PHONY: help serve test tests test-web check bench bench-cpu bench-peers kills sanitize sanitize-beside tsan scenarios coverage test-torch test-vllm fuzz-http fuzz-readers soak format clean preflight


help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 18

serve: $(VENV)/.headway  ## the server with the embedded model, on 127.0.0.1:8000
	@$(BIN)/headway serve $(MODEL) $(ARGS)

# Every test at once on as many workers as there are cores, a file of tests on one of them; what they
# leave of the machine goes to the sanitizers, at the lowest priority. Some of TESTS run one by one.
test: $(VENV)/.headway $(VENV)/.dev $(WEB)  ## the checks, then every test
	@$(MAKE) --no-print-directory -j2 tests $(if $(TESTS),,sanitize-beside)

# Numpy's products would take every core for each worker, and mostly wait for one another there.
# Some tests watch real threads and sockets on a machine that others share: what fails is looked at
# once more, by itself, and has to pass then.
# Those in a browser are run where there is one; the summary says where they were not.
tests: check
	unset MAKEFLAGS; export OPENBLAS_NUM_THREADS=1; \
	$(BIN)/python -m pytest $(if $(TESTS),$(TESTS),$(PARALLEL)) || \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS)

sanitize: $(VENV)/.headway $(VENV)/.dev  ## native tests under AddressSanitizer and UBSan, in build/
	@$(SANITIZE)

# What they print comes in one piece, when they have ended.
sanitize-beside: $(VENV)/.headway $(VENV)/.dev
	@mkdir -p build; unset MAKEFLAGS; renice -n 19 -p $$$$ >/dev/null; \
	( $(SANITIZE) ) >build/sanitizers.txt 2>&1; status=$$?; cat build/sanitizers.txt; exit $$status

tsan: $(VENV)/.headway $(VENV)/.dev  ## lanes under ThreadSanitizer, a minute or ARGS="--seconds 1200"
	@sh scripts/sanitize $(VENV) thread bench/stress.py $(ARGS)

test-web: $(VENV)/.headway $(VENV)/.dev $(WEB)  ## the live page in Chromium, OpenAI's client in Node
	@$(if $(CHROMIUM)$(NPM),true,echo "make test-web: neither Chromium nor Node (apt-get install chromium npm)" >&2; exit 2)
	$(BIN)/python -m pytest tests/web tests/clients

check: $(VENV)/.headway $(VENV)/.dev  ## lint, format, types, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.headway  ## micro-benchmarks beside their baseline; tokens/s with ARGS=speed
ifneq ($(filter speed overtake serve,$(firstword $(ARGS))),)
	@$(BIN)/headway bench $(ARGS)
	@$(BIN)/python bench/plan.py
else
	@$(BIN)/python bench/micro.py $(ARGS)
endif

bench-cpu: $(VENV)/.headway  ## the CPU engine beside its limits and PEERS="--llama-cpp PYTHON …"
	@model="$(MODEL)"; [ -n "$$model" ] || \
	model=$$($(BIN)/python -c 'from headway.models.pull import pull; print(pull())') && \
	$(BIN)/python bench/roofline.py "$$model" $(ARGS) && \
	$(BIN)/python bench/peers/compare.py "$$model" $(PEERS)

bench-peers: $(VENV)/.headway $(VENV)/.dev $(PEER_ENVIRONMENTS)  ## beside llama.cpp, OpenVINO and vLLM, into docs/benchmarks.md (5 GB, hours)
	@model="$(MODEL)"; [ -n "$$model" ] || \
	model=$$($(BIN)/python -c 'from headway.models.pull import pull; print(pull())') && \
	$(BIN)/python bench/peers/page.py "$$model" --rounds $(ROUNDS) --seconds $(SECONDS) \
		--parts $(PARTS) $(if $(LLAMA_CPP),--llama-cpp "$(LLAMA_CPP)") \
		$(if $(OPENVINO),--openvino "$(OPENVINO)") $(if $(VLLM),--vllm "$(VLLM)") \
		$(if $(Q4_0),--q4-0 "$(Q4_0)") $(if $(HF),--hf "$(HF)") $(ARGS)

scenarios: $(VENV)/.headway $(VENV)/.dev  ## ten times the scheduler's random scenarios, new ones
	SCENARIOS_TIMES=$(or $(TIMES),10) $(BIN)/python -m pytest tests/core \
		--hypothesis-profile=search $(ARGS)

coverage: $(VENV)/.headway $(VENV)/.dev $(VENV)/.coverage  ## that the scheduler's tests take every branch of it
	$(BIN)/python -m coverage run -m pytest tests/core $(ARGS)
	$(BIN)/python -m coverage report

kills: $(VENV)/.headway $(VENV)/.dev  ## batch jobs under SIGKILL, 200 times (some minutes)
	$(BIN)/python -m tests.batches.kill $(ARGS)

test-torch: $(VENV)/.headway $(VENV)/.dev  ## the torch executor's tests, on PyTorch's CPU build
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install $(TORCH)
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/pip install --no-deps $(TRITON) || true
	$(BIN)/python -m pytest tests/torch_ $(ARGS)

# In an environment of its own: vLLM wants gigabytes, and versions of its own.
test-vllm: $(VLLM_VENV)/.vllm  ## the scheduling inside vLLM, on a CPU (3.5 GB, some minutes); VLLM_VERSION=0.31.0
	$(abspath $(VLLM_VENV))/bin/python -m pytest -s -c integrations/vllm/pyproject.toml \
		integrations/vllm/tests $(ARGS)

fuzz-http: $(VENV)/.headway $(VENV)/.dev  ## 10,000 requests made from our own OpenAPI document
	$(BIN)/python -m tests.server.fuzz $(ARGS)

soak: $(VENV)/.headway $(VENV)/.dev  ## 20 minutes of mixed traffic, a stop in the middle (ARGS="--seconds 60")
	$(BIN)/python -m tests.soak.run $(ARGS)

fuzz-readers: $(VENV)/.headway $(VENV)/.dev  ## broken model files, templates, job files; 10 minutes each
	$(BIN)/python -m tests.readers.fuzz $(ARGS)

format: $(VENV)/.dev  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything built
	rm -rf tests/clients/node_modules $(VENV) .venv-vllm .venv-vllm-* $(LLAMA_CPP_VENV) $(OPENVINO_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

preflight:
	@sh scripts/preflight >/dev/null

# The native module is built without pip's isolation, so that a change compiles only what it must.

$(VENV)/.made: | preflight
	@echo "headway: making $(VENV)"
	@sh scripts/venv make $(VENV)
	@touch $@

$(VENV)/.build: pyproject.toml scripts/requirements $(VENV)/.made
	@echo "headway: installing the build tools"
	@$(BIN)/python scripts/requirements build >$(VENV)/build.txt
	@sh scripts/venv install $(VENV) -r $(VENV)/build.txt
	@touch $@

$(VENV)/.headway: pyproject.toml $(NATIVE) $(VENV)/.build | preflight
	@echo "headway: installing what it needs at run time, and compiling native/ (a minute or two)"
	@sh scripts/venv install $(VENV) --no-build-isolation --editable .
	@touch $@

$(VENV)/.web: pyproject.toml scripts/requirements $(VENV)/.made | preflight
	@echo "headway: installing what drives a browser"
	@$(BIN)/python scripts/requirements web >$(VENV)/web.txt
	@sh scripts/venv install $(VENV) -r $(VENV)/web.txt
	@touch $@

$(VENV)/.coverage: pyproject.toml scripts/requirements $(VENV)/.made | preflight
	@echo "headway: installing what measures coverage"
	@$(BIN)/python scripts/requirements coverage >$(VENV)/coverage.txt
	@sh scripts/venv install $(VENV) -r $(VENV)/coverage.txt
	@touch $@

# Without a network the tests say that they did not run; the next make tries again.
$(CLIENTS): tests/clients/package-lock.json
	@echo "headway: installing OpenAI's client for JavaScript"
	@$(NPM) ci --silent --no-fund --no-audit --prefix tests/clients || \
		echo "headway: npm could not install it" >&2

$(VENV)/.dev: pyproject.toml scripts/requirements $(VENV)/.made | preflight
	@echo "headway: installing the tools for tests and checks"
	@$(BIN)/python scripts/requirements dev >$(VENV)/dev.txt
	@sh scripts/venv install $(VENV) -r $(VENV)/dev.txt
	@touch $@

$(VLLM_VENV)/.vllm: scripts/vllm-env pyproject.toml integrations/vllm/pyproject.toml | preflight
	@echo "headway: making $(VLLM_VENV), with vLLM for CPUs"
	@sh scripts/vllm-env $(VLLM_VENV) $(VLLM_VERSION)
	@touch $@

$(LLAMA_CPP_VENV)/.peer: | preflight
	@echo "headway: making $(LLAMA_CPP_VENV), with llama.cpp"
	@sh scripts/venv make $(LLAMA_CPP_VENV)
	@sh scripts/venv install $(LLAMA_CPP_VENV) $(XLLAMACPP)
	@touch $@

$(OPENVINO_VENV)/.peer: | preflight
	@echo "headway: making $(OPENVINO_VENV), with OpenVINO GenAI"
	@sh scripts/venv make $(OPENVINO_VENV)
	@sh scripts/venv install $(OPENVINO_VENV) $(OPENVINO_GENAI)
	@touch $@
