# Two commands for a fresh clone: `make demo` and `make test`. Each makes what it needs and is quick the second time.
#
#   PYTHON=python3.12     the interpreter for .venv (>= 3.10)
#   TORCH=torch==2.11.0   another supported torch (use another VENV and BUILD with it)
#   MAX_JOBS=2            compiler jobs at once
#   POSENC_CUDA=auto|0|1  CUDA sources: where nvcc is found, never, or an error without it
PYTHON ?= python3
TORCH ?= torch==2.15.0
VENV ?= .venv
BUILD ?= build/inplace
MAX_JOBS ?= $(shell nproc 2>/dev/null || echo 2)
POSENC_CUDA ?= auto
TORCH_CUDA_ARCH_LIST ?= 9.0
DEMO_FLAGS ?=
BENCH_FLAGS ?=

PY := $(VENV)/bin/python
export MAX_JOBS POSENC_CUDA TORCH_CUDA_ARCH_LIST
# A path of the caller must not put another posenc or torch in front of this one.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help env build demo test test-cpp test-python bench bench-cpp bench-python docs lint format wheel clean

help:
	@echo "make demo    train a small language model with every encoding and compare them"
	@echo "make test    build and run every test: GoogleTest through ctest, then pytest"
	@echo "make bench   time the operators against the machine's limit and their peers (BENCH_FLAGS=--quick for few lengths)"
	@echo "make docs    the documentation as HTML, in build/docs/html (C++ reference where doxygen is installed)"
	@echo "make build   environment and binaries only"
	@echo "make wheel   dist/posenc-*.whl for this torch and Python"
	@echo "make lint    ruff and clang-format, where they are installed"
	@echo "make clean   remove what was built (not $(VENV))"

# The stamp holds what was asked for, so a changed pin or TORCH installs anew and nothing else does.
$(VENV)/.installed: requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "posenc needs Python >= 3.10, found " + sys.version.split()[0])'
	@echo "== environment: $(VENV) with $(TORCH) (about 3 GB once) =="
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)" -r requirements-dev.txt
	@touch $@

env: $(VENV)/.installed

build: env
	@echo "== build: $(BUILD), MAX_JOBS=$(MAX_JOBS), POSENC_CUDA=$(POSENC_CUDA) =="
	@$(PY) -m cmake -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja \
	    -DPython_EXECUTABLE=$(abspath $(PY)) -DPOSENC_INPLACE=ON -DPOSENC_BUILD_TESTS=$(BUILD_TESTS) -DPOSENC_CUDA=$(POSENC_CUDA)
	@$(PY) -m cmake --build $(BUILD) --parallel $(MAX_JOBS)
	@$(PY) -c 'import sysconfig, pathlib; pathlib.Path(sysconfig.get_path("purelib"), "posenc-checkout.pth").write_text("$(CURDIR)/python\n")'

# Tests stay configured once they were, so that `make demo` after `make test` rebuilds nothing.
BUILD_TESTS ?= $(shell grep -qs "POSENC_BUILD_TESTS:BOOL=ON" $(BUILD)/CMakeCache.txt && echo ON || echo OFF)

demo: build
	@echo "== demo: five small language models, one per encoding =="
	@$(PY) -m posenc train $(DEMO_FLAGS)

test:
	@$(MAKE) --no-print-directory build BUILD_TESTS=ON
	@$(MAKE) --no-print-directory test-cpp test-python

test-cpp:
	@echo "== GoogleTest, through ctest =="
	@$(PY) tests/check_symbols.py $(BUILD)
	@$(PY) tests/check_kernels.py python/posenc/lib/libposenc.so
	@cd $(BUILD) && $(abspath $(VENV))/bin/ctest --output-on-failure --no-tests=error --parallel 2

test-python:
	@echo "== pytest =="
	@$(PY) -m pytest -q $(PYTEST_FLAGS)

bench:
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory bench-cpp bench-python

bench-cpp:
	@echo "== GoogleBenchmark =="
	@$(PY) -m cmake -S . -B $(BUILD) -DPOSENC_BUILD_BENCHMARKS=ON
	@$(PY) -m cmake --build $(BUILD) --parallel $(MAX_JOBS) --target benchmarks
	@for program in $(BUILD)/*_bench; do $$program || exit 1; done

bench-python:
	@echo "== python -m posenc.benchmark $(BENCH_FLAGS) =="
	@$(PY) -m posenc.benchmark $(BENCH_FLAGS)

$(VENV)/.installed-docs: docs/requirements.txt | $(VENV)/.installed
	@$(PY) -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# Warnings are errors: a link that leads nowhere, a comment that names an argument that is not there.
docs: build $(VENV)/.installed-docs
	@echo "== docs: build/docs/html/index.html =="
	@$(PY) docs/gallery.py
	@rm -rf build/docs/doxygen && mkdir -p build/docs
	@if command -v doxygen >/dev/null; then doxygen docs/Doxyfile; \
	    else echo "docs: no doxygen on PATH, so without the C++ reference (apt-get install doxygen)"; fi
	@$(PY) -m sphinx -W --keep-going -q -b html -d build/docs/doctrees docs build/docs/html

# For every architecture, unless the caller named some: what tests compile for is the Makefile's own default.
wheel: env
	@$(if $(filter file,$(origin TORCH_CUDA_ARCH_LIST)),env -u TORCH_CUDA_ARCH_LIST) $(PY) -m pip wheel --quiet --no-build-isolation --no-deps -w dist .

lint:
	@command -v ruff >/dev/null && ruff check . && ruff format --check . || echo "lint: no ruff on PATH"
	@command -v clang-format >/dev/null && git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.cpp' | xargs clang-format --dry-run -Werror \
	    || echo "lint: no clang-format on PATH"

format:
	@ruff format . && ruff check --fix . ; git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.cpp' | xargs clang-format -i

clean:
	rm -rf build dist demo_out python/posenc/lib python/posenc/*.so python/posenc/_build_info.py python/*.egg-info
