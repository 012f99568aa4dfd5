# Two commands matter to a newcomer: `make demo` and `make test`. `make help` lists the rest; `make test-all` is what a
# change has to pass beyond them.

PYTHON ?= python3
VENV   ?= .venv
# Extras that `make test-all` installs: nothing is left to skip but the GPU suite.
EXTRAS ?= test,dev,docs,torch,cuda,jax
# Extra arguments of pytest, e.g. `make test PYTEST="-k keys -x"`.
PYTEST ?= -n 2 --dist worksteal
# What `test-all` installs once for all targets of a step, which side by side would disturb each other's installations.
WITH   ?=

BIN  := $(VENV)/bin
comma := ,
SOURCES := src lab tests examples conftest.py $(wildcard scripts) docs/conf.py
KERNELS := $(shell find src/ksieve lab/src examples -name '*.cu' -o -name '*.cuh') $(wildcard tests/support/emulator/*.h)

.PHONY: help demo test test-all test-rest test-floors floors-ready test-gpu test-emulated cubins sanitize wheel check format \
  docs site bench-cpu clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed  ## install both distributions with base dependencies, select from the bundled capture, verify
	@$(BIN)/ksieve demo

test: $(VENV)/.with-test  ## install the test dependencies, test every package of the library (3 minutes on two cores)
	$(BIN)/python -m pytest --part first $(PYTEST)

# One run shows everything that is wrong. What takes one core or the network comes first, two at a time, the extras beside
# the lowest versions; the suite comes last, so that its closing line is the last thing of a good run.
test-all: $(BIN)/python  ## the rest: extras, lint, site, wheel, lowest versions, machine code, emulated kernels
	@failed=; step() { printf '\n=== make %s (%s)\n' "$$*" "$$(date +%T)"; \
	  $(MAKE) --no-print-directory --keep-going "$$@" || failed="$$failed; make $$*"; }; \
	step --jobs=2 --output-sync=target floors-ready check site wheel WITH=$(EXTRAS); \
	step test-floors; rm -rf $(VENV)-floors; \
	step cubins; step cubins CUDA=12 SAMPLE=1 ONLY=sm_90a; rm -rf $(VENV)-cuda12; \
	step test-rest; \
	if [ "$$failed" ]; then echo "failed$$failed" >&2; exit 1; fi

test-rest: $(VENV)/.with-$(EXTRAS)  ## of test-all, the tests: those that `make test` leaves out or an extra may change
	$(BIN)/python -m pytest --part rest $(PYTEST)

# An environment of its own, 5 GB while it exists: the wheels of PyTorch's lowest version on PyPI bring CUDA along.
test-floors: $(VENV)-floors/.installed  ## run a selection of tests with the lowest versions that pyproject.toml admits
	$(VENV)-floors/bin/python -c 'import cuda.core, filelock, matplotlib, numba, platformdirs, rich, safetensors, torch, typer'
	$(VENV)-floors/bin/python -m pytest -m "not gpu and not extended" $$($(VENV)-floors/bin/python scripts/lowest_versions.py tests) $(PYTEST)
	$(VENV)-floors/bin/python -c 'from cuda.bindings import nvrtc; nvrtc.nvrtcVersion(); import sys, pytest; sys.exit(pytest.main())' \
	  -m "not gpu and not extended" $$($(VENV)-floors/bin/python scripts/lowest_versions.py cuda)

# The demo compiles the CPU kernels with the lowest Numba: the workers of the tests would wait for the first of them.
floors-ready: $(VENV)-floors/.dependencies
	@PYTHONPATH=src:lab/src $(VENV)-floors/bin/python -m ksieve_lab demo >/dev/null

# Uses the caller's Python as it is (it needs torch, numpy, cuda-core and pytest) and downloads nothing.
test-gpu:  ## run the GPU suite with $(PYTHON)
	PYTHONPATH=src:lab/src:.:tests:tests/support $(PYTHON) -m pytest -m gpu tests/gpu tests/contract/test_contract.py tests/contract/test_options.py

# No GPU: the kernels' PTX runs on the CPU (tests/support/emulator). `make test-emulated DEVICE=a100 PART="-k few_candidates"`
DEVICE ?= h200
PART   ?= -x -n 2
test-emulated: $(VENV)/.with-test $(VENV)/.with-cuda $(VENV)/.with-torch  ## run the GPU suite, or a PART of it, on the CPU as another DEVICE
	KSIEVE_GPU_EMULATED=1 KSIEVE_EMULATED_DEVICE=$(DEVICE) PYTHONPATH=src:lab/src:.:tests:tests/support \
	  $(BIN)/python -m pytest -m gpu tests/gpu $(PART)

# Kernels whose line in tests/data/cubins.json contains ONLY; UPDATE=1 rewrites that list and tests/data/resources.json;
# WHOLE=1 compiles also what the lists say of kernels with the same source, headers and defines.
ONLY   ?=
UPDATE ?=
WHOLE  ?=
# CUDA=12 compiles with the NVRTC of the extra cuda12 and lists spills; SAMPLE=1: one kernel of each source, dtype and GPU.
CUDA   ?=
SAMPLE ?=
ifeq ($(CUDA),12)
cubins: $(VENV)-cuda12/.installed
	@$(VENV)-cuda12/bin/python scripts/cubins.py --spills --only "$(ONLY)" $(if $(SAMPLE),--sample) $(if $(UPDATE),--update)
else
cubins: $(VENV)/.with-dev $(VENV)/.with-cuda  ## compile changed kernels without a GPU, compare with tests/data/cubins.json
	@$(BIN)/python scripts/cubins.py --only "$(ONLY)" $(if $(UPDATE),--update) $(if $(WHOLE),--whole)
	@$(if $(UPDATE),$(BIN)/python scripts/resources.py $(if $(WHOLE),--whole))
endif

sanitize:  ## run every kernel under compute-sanitizer with $(PYTHON): memcheck, racecheck, synccheck
	PYTHON=$(PYTHON) scripts/gpu_session.sh sanitize

wheel: $(VENV)/$(if $(WITH),.with-$(WITH),.installed)  ## build the wheels in a folder that goes, check their contents
	@folder=$$(mktemp -d) && $(BIN)/python -m pip wheel . ./lab --no-deps --quiet --wheel-dir "$$folder" && \
	  $(BIN)/python scripts/check_wheel.py "$$folder"; status=$$?; rm -rf "$$folder"; exit $$status

check: $(VENV)/.with-$(or $(WITH),dev)  ## lint, formatting, spelling, types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/codespell
ifneq ($(KERNELS),)
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
endif

format: $(VENV)/.with-dev  ## apply the formatters
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
ifneq ($(KERNELS),)
	$(BIN)/clang-format -i $(KERNELS)
endif

docs: $(VENV)/.with-dev  ## regenerate every measured number in README and docs/
	$(BIN)/python scripts/generate_docs.py

site: $(VENV)/.with-$(or $(WITH),docs)  ## build the documentation into docs/_build/html, try it in a browser if one is there
	rm -rf docs/_build/html
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q docs docs/_build/html
	$(BIN)/python scripts/check_site.py docs/_build/html

bench-cpu: $(VENV)/.installed  ## measure the CPU backend into benchmarks/results/ (minutes)
	$(BIN)/ksieve bench cpu --out benchmarks/results

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) $(VENV)-floors $(VENV)-cuda12 build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis src/ksieve.egg-info lab/build lab/src/ksieve_lab.egg-info docs/_build docs/reference/generated

# --- the virtual environment -----------------------------------------------------------------------------
# Debian ships Python without ensurepip unless python3-venv is installed; any pip of the system can then put
# one into an empty environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ksieve needs Python 3.11 or newer, and $(PYTHON) is not: try 'make PYTHON=python3.12 ...'" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || \
	  { rm -rf $(VENV); \
	    echo "could not create a virtual environment: on Debian or Ubuntu, 'apt-get install python3-venv'" >&2; exit 1; }

$(VENV)/.installed: $(BIN)/python pyproject.toml lab/pyproject.toml constraints.txt
	@echo "installing ksieve and ksieve-lab with their base dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --editable ./lab
	@touch $@

# One stamp for each extra, and one for all of them together.
$(VENV)/.with-%: $(BIN)/python pyproject.toml lab/pyproject.toml constraints.txt
	@echo "installing ksieve[$*] and ksieve-lab into $(VENV)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]' --editable './lab$(if $(findstring dev,$*)$(findstring docs,$*),[plot])'
	@touch $(VENV)/.installed $(addprefix $(VENV)/.with-,$(subst $(comma), ,$*)) $@

# Without the project, whose build two installations at a time would disturb: .ci/run makes this beside other steps.
# What is imported of it is compiled then; pip would compile all.
$(VENV)-floors/.dependencies: pyproject.toml lab/pyproject.toml scripts/lowest_versions.py
	@$(MAKE) --no-print-directory VENV=$(VENV)-floors $(VENV)-floors/bin/python
	@echo "installing the lowest versions into $(VENV)-floors"
	@$(VENV)-floors/bin/python scripts/lowest_versions.py requirements >$(VENV)-floors/constraints.txt
	@$(VENV)-floors/bin/python -m pip install --quiet --no-cache-dir --no-compile \
	  --constraint $(VENV)-floors/constraints.txt $$($(VENV)-floors/bin/python scripts/lowest_versions.py installed)
	@touch $@

$(VENV)-floors/.installed: $(VENV)-floors/.dependencies
	@$(VENV)-floors/bin/python -m pip install --quiet --no-cache-dir --constraint $(VENV)-floors/constraints.txt \
	  --editable '.[cuda,torch]' --editable './lab[plot]'
	@touch $@

# The extras cuda and cuda12 exclude each other: the bindings of CUDA 12 load its NVRTC, those of 13 theirs.
$(VENV)-cuda12/.installed: pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(VENV)-cuda12 $(VENV)-cuda12/bin/python
	@echo "installing the extra cuda12 into $(VENV)-cuda12"
	@$(VENV)-cuda12/bin/python -m pip install --quiet --no-compile --editable '.[cuda12]' --editable ./lab
	@touch $@
