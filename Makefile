# The workshop. `make` alone lists what there is; each target is one line here and a script in tools/.

JOBS    ?= $(shell nproc)
PYTHON  ?= python3

VENV    := .venv/bin
# include/byteps/byteps.h is laid out by hand: it is the manual of the C interface.
SOURCES := $(shell find src tests bench examples -name '*.cc' -o -name '*.h' -o -name '*.c')

# The same objects for every checkout: paths in the cache are relative to it.
export CCACHE_BASEDIR    := $(CURDIR)
export CCACHE_NOHASHDIR  := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PYTHON JOBS
# Frameworks are large: who does not keep their compiled modules waits for them at each start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-horovod demo test test-more test-rdma test-gpu test-long test-all test-asan test-tsan soak bench format lint wheel docs clean

help:       ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:      ## all that tests need: .venv, .venv-mxnet, the release build; FRAMEWORKS="torch jax": only what these need
	@tools/setup $(FRAMEWORKS)

setup-horovod: ## .venv-horovod, with Horovod for the benchmarks: fetches torch 2.1 and builds, minutes
	@tools/setup horovod

demo:       ## train a small network on real digits: 2 workers, 2 servers; plots in build/demo/
	@tools/setup torch
	@rm -rf build/demo && mkdir -p build/demo
	@OMP_NUM_THREADS=1 BYTEPS_FORCE_DISTRIBUTED=1 $(VENV)/bpslaunch --local --workers 2 --servers 2 -- $(CURDIR)/$(VENV)/python examples/torch/train_digits.py
	@cat build/demo/result.txt

test: setup ## C++, Python, processes, simulated clusters, tidy; ends with a summary
	@$(VENV)/python tools/test

test-more: setup ## what CI adds to make test: RDMA, Keras, two machines, both sanitizers, side by side
	@$(VENV)/python tools/test more

test-rdma: setup ## RDMA between three hosts of an emulated machine: minutes
	@$(VENV)/python tools/test rdma

test-gpu:   ## the tests of torch on a real GPU: this Python's own torch and pytest, an installed byteps or this checkout's
	@BYTEPS_TEST_DEVICE=real $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/python

test-long: setup ## the tests marked long: valgrind, tensors of GiB, whole trainings; .ci/run leaves them out
	@$(VENV)/python tools/test long

test-all: setup ## everything: make test, test-more, test-long and fuzz
	@$(VENV)/python tools/test main more long
	@$(MAKE) --no-print-directory fuzz

test-asan: setup ## C++ tests, jobs and 200 simulated clusters under address and undefined-behaviour sanitizers
	@$(VENV)/python tools/test asan

test-tsan: setup ## C++ tests and jobs under the thread sanitizer
	@$(VENV)/python tools/test tsan

.PHONY: fuzz
fuzz:       ## all fuzz targets from their kept corpora, FUZZ_SECONDS (60) each; needs clang
	@tools/fuzz

soak: setup ## half an hour of real jobs, something killed or stopped every 15 s; SOAK_MINUTES=5 is shorter
	@$(VENV)/python tools/soak

.PHONY: soak-recovery
soak-recovery: setup ## two hours of one job that survives kills, stops and pulled cables
	@$(VENV)/python tools/soak_recovery --verbose

bench: setup ## BytePS and its rivals on shaped networks, beside the physical limits; needs root
	@$(VENV)/python bench/run.py; code=$$?; $(VENV)/python bench/report.py && exit $$code
	@build/release/bin/shelf_bench
	@build/release/bin/transport_bench 1
	@build/release/bin/scheduler_bench
	@build/release/bin/byteps_sim --seeds 1000

.PHONY: bench-quick
bench-quick: setup ## the same for a few scenarios, in under four minutes
	@$(VENV)/python bench/run.py --quick

format:     ## clang-format on all C and C++ files
	@clang-format -i $(SOURCES)

lint: setup ## clang-tidy on src/, whether clang-format would change anything, ruff, and mypy on python/byteps
	@tools/lint_python
	@clang-format --dry-run -Werror $(SOURCES)
	@tools/lint

wheel: setup ## dist/byteps-*-py3-none-manylinux2014_*.whl, checked with each CPython 3.9 to 3.13 found here
	@$(VENV)/python tools/wheel

docs: setup ## docs/env.md from the table in src/app/env.cc
	@$(VENV)/python tools/write_env_reference docs/env.md

clean:      ## remove build/ and dist/ (.venv stays)
	rm -rf build dist
