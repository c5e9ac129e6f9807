# Goals for building, testing and measuring. Every build gets its compiler, flags and target folder from this file, so that llama.cpp
# is compiled once (about seven minutes on two cores) for cargo, maturin, clippy, the tests and the benchmarks.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory --no-builtin-rules

ROOT := $(CURDIR)
VENV := $(ROOT)/.venv

# rustup puts cargo where only a login shell looks for it.
export PATH := $(VENV)/bin:$(PATH):$(HOME)/.cargo/bin:/usr/sbin
export CARGO_TARGET_DIR ?= $(ROOT)/target
# For the CPU at hand, or for another: llama.cpp follows this flag. Wheels that are to travel have flags of their own (scripts/wheels.py).
TARGET_CPU ?= native
export RUSTFLAGS := -C target-cpu=$(TARGET_CPU)
export VIRTUAL_ENV := $(VENV)
export PYO3_PYTHON := $(VENV)/bin/python
# maturin would set both for itself alone, and pyo3 would be compiled again each time clippy and maturin take turns.
export PYO3_CONFIG_FILE := $(CARGO_TARGET_DIR)/pyo3-config.txt
export PYO3_BUILD_EXTENSION_MODULE := 1
export UV_PYTHON_DOWNLOADS := never
# Where a machine's settings forbid bytecode, each worker of pytest would compile all tests, and each server that they start its modules.
unexport PYTHONDONTWRITEBYTECODE
# pip builds by scripts/build_backend.py, which calls maturin.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1

CARGO_FLAGS := --release --locked
UV_VERSION := 0.13.9

define step
@printf '\n\033[1m== %s\033[0m\n' "$(1)"
endef

# CC, CXX and the like: found, or installed by apt, when something is to be built. Tests run examples for a shell and for Node.js,
# open pages in Chromium, complete commands in shells, and check the configurations of other programs that pages show.
TOOLCHAIN := $(CARGO_TARGET_DIR)/toolchain.mk
PROGRAMS := $(if $(filter test test-python,$(MAKECMDGOALS)),chromium curl fish jq nginx node systemd-analyze zsh)
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
$(shell PATH="$(PATH)" CARGO_TARGET_DIR="$(CARGO_TARGET_DIR)" scripts/toolchain $(TOOLCHAIN) $(PROGRAMS))
ifneq ($(filter-out 0,$(.SHELLSTATUS)),)
$(error the build cannot start)
endif
include $(TOOLCHAIN)
endif

.PHONY: help run page test test-portable fuzz watchdog bench bench-quick bench-loads bench-start bench-abuse bench-against bench-interference bench-fanout bench-forks bench-levels bench-page bench-all clients ray compare docs docs-serve wheel wheels single-wheel lint types test-rust test-python test-arm test-miri fmt extension env clean

help: ## List the goals
	@echo 'usage: make GOAL'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F '|' '{ printf "  %-13s %s\n", $$1, $$2 }'

run: extension ## Serve the demo model on http://127.0.0.1:8080 (ARGS="-m model.gguf -np 16" goes to the server)
	@exec python -m weft $(ARGS)

test: lint types test-rust test-python ## Run every check that a change must pass

bench: ## Time of a step relative to llama.cpp's best and the machine's limits: under fifteen minutes (ARGS="--help")
	cargo bench --locked --bench decode -- $(ARGS)

bench-quick: ## The same in a minute and a half
	@$(MAKE) bench ARGS="--quick $(ARGS)"

bench-loads: extension ## Client latency and throughput, also over HTTP, relative to loops that work as llama-server does (ARGS="--quick")
	cargo bench --locked --bench loads -- $(ARGS)

bench-start: extension ## Start-up time, and memory of an idle and a busy server (ARGS="--quick --python /tmp/installed/bin/python")
	python -m benches.start $(ARGS)

bench-abuse: extension ## Latency of a stream and a chat during 200 abusive connections, and resources left behind: 14 minutes (ARGS="--seconds 60")
	python -m benches.abuse $(ARGS)

bench-interference: extension ## 99th percentile of a stream's pauses during embeddings, images and changes of adapters: two minutes
	$(call step,streams during embeddings)
	python -m benches.embeddings
	$(call step,streams during images)
	python -m benches.media
	$(call step,streams during changes of adapters)
	python -m benches.adapters

bench-against: extension ## Throughput, shared prompts and a long prompt, compared with llama-server (ARGS="--random 8b-q4_k --llama-server PATH")
	python -m benches.against $(ARGS)

bench-fanout: extension ## One long text continued in several ways, as requests and as branches (ARGS="--llama-server PATH" adds llama-server)
	python -m benches.fanout $(ARGS)

bench-forks: extension ## Latency of a stream and a chat during forks and searches: two minutes (ARGS="--seconds 20")
	python -m benches.beside_forks $(ARGS)

bench-levels: extension ## Speed of a wheel at each CPU level relative to this build (ARGS="/tmp/installed/bin/python", which has the wheel)
	python -m benches.levels $(ARGS)

bench-page: extension ## The page for writers with 10,000 nodes: opening, frames, memory, storing, alternatives: two minutes
	python -m benches.page

bench-all: extension bench bench-loads ## All of these, and the gain of sharing, the cost of saving, and the speed of HTTP relative to the engine
	$(call step,shared prompts relative to none)
	cargo bench --locked --bench sharing -- $(ARGS)
	$(call step,saving and restoring prompts)
	cargo bench --locked --bench state -- $(ARGS)
	$(call step,overhead of a step)
	cargo bench --locked --bench allocations -- $(ARGS)
	$(call step,operations of a large cache)
	cargo bench --locked --bench cache -- $(ARGS)
	$(call step,a step with a long queue)
	cargo bench --locked --no-default-features --features fake-runner --bench growth
	$(call step,HTTP relative to the engine)
	python benches/streaming.py $(filter --quick,$(ARGS))
	$(call step,start-up)
	python -m benches.start $(filter --quick,$(ARGS))
	$(call step,ten steps)
	python -m benches.timeline
	$(call step,event loop delays by route)
	@$(MAKE) watchdog ARGS=

clients: extension ## Test existing clients against a server with a scripted model: half an hour (ARGS="openai-python")
	python -m tests.clients.run $(ARGS)

ray: extension ## Test replicas on a real Ray, installed into a folder of its own: five minutes (ARGS=--faults injects faults)
	python -m tests.ray.run $(ARGS)

compare: ## Send the same requests to llama-server and Weft, and list the differences (LLAMA_SERVER=/path/to/llama-server)
	@test -x '$(LLAMA_SERVER)' || { echo 'weft: name a llama-server: make compare LLAMA_SERVER=/path/to/llama-server' >&2; exit 1; }
	@$(MAKE) extension
	python -m tests.compare.fetch_templates
	python -m tests.compare.run '$(LLAMA_SERVER)' $(ARGS)

# Tagged `linux`, not `manylinux`: made for this CPU, it must not travel.
wheel: .venv/synced $(PYO3_CONFIG_FILE) ## Build a wheel for this machine's CPU in dist/
	maturin build --release --locked --strip --compatibility linux --out dist

# In a folder of its own: what `make run` and `make test` build stays as it is.
wheels: .venv/synced $(PYO3_CONFIG_FILE) ## Build the portable wheel, for every CPU level, and the source distribution in dist/ (half an hour; ccache helps)
	@grep -q '^export CC := clang' $(TOOLCHAIN) || { echo 'weft: wheels need clang 16 or newer' >&2; exit 1; }
	PYTHONPATH=python python scripts/wheels.py $(ARGS)

single-wheel: .venv/synced $(PYO3_CONFIG_FILE) ## Build a wheel with one compiled module: ARGS=cuda12, vulkan, metal, or cpu for machines without Linux
	PYTHONPATH=python python scripts/single_wheel.py $(ARGS)

lint: .venv/synced $(PYO3_CONFIG_FILE) ## Run rustfmt, clippy and ruff; warnings are errors
	$(call step,format)
	cargo fmt --check
	ruff format --check --quiet
	$(call step,lint)
	ruff check --quiet
	cargo clippy $(CARGO_FLAGS) --quiet --all-targets --no-default-features --features fake-runner -- -D warnings
	cargo clippy $(CARGO_FLAGS) --quiet --all-targets -- -D warnings
	cargo clippy $(CARGO_FLAGS) --quiet --all-targets --features python -- -D warnings

types: extension ## Run mypy (tests/test_public_api.py compares the stub with the compiled module)
	$(call step,types)
	mypy

# Nothing but rust/llama is compiled otherwise with llama.cpp than without (tests/test_layering.py), and all else is tested once: in
# the profile `checked`, where a sum that overflows is a panic. It compiles no C++, so that llama.cpp is still compiled once.
test-rust: .venv/synced ## Run the crate's tests, without and with llama.cpp
	$(call step,Rust tests with a fake model)
	cargo test --profile checked --locked --quiet --no-default-features
	$(call step,Rust tests with llama.cpp)
	cargo test $(CARGO_FLAGS) --quiet llama::

test-python: extension web/node_modules/.installed ## Run the Python tests (ARGS="-k slots" goes to pytest)
	$(call step,Python tests)
	pytest --quiet --numprocesses auto --dist worksteal $(ARGS)

# The C library comes with the target, the linker with Rust. A crate that the benchmarks need has a C file, which includes the
# compiler's own headers only; CC is a clang, which compiles for every processor.
test-arm: ## Run the kernels' tests for ARM, if its emulator is installed (ARGS="attention" selects some)
	@command -v qemu-aarch64 >/dev/null || { echo 'weft: there is no qemu-aarch64; Debian has it in qemu-user' >&2; exit 1; }
	rustup target add aarch64-unknown-linux-musl
	RUSTFLAGS= CC_aarch64_unknown_linux_musl='$(CC)' CFLAGS_aarch64_unknown_linux_musl='-ffreestanding -nostdlibinc' \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
		cargo test $(CARGO_FLAGS) --quiet --no-default-features --lib --target aarch64-unknown-linux-musl kernels::$(ARGS)

test-portable: .venv/synced ## Check the engine for Windows and macOS, and that the package imports there (installs two targets of Rust)
	rustup target add x86_64-pc-windows-gnu aarch64-apple-darwin
	RUSTFLAGS= cargo check --locked --no-default-features --lib --target x86_64-pc-windows-gnu --target aarch64-apple-darwin
	pytest --quiet tests/test_portable.py

# Plain Rust is what it can run: an instruction set that is only detected is not there for it.
test-miri: ## Run the kernels' small cases under Miri, which checks each memory access (ten minutes; installs a nightly Rust)
	rustup toolchain install nightly --profile minimal --component miri,rust-src
	RUSTFLAGS= MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR='$(CARGO_TARGET_DIR)/miri' \
		cargo +nightly miri test --locked --no-default-features --lib small::

fuzz: extension ## Send a server 10,000 random requests of the OpenAPI document and 10,000 mutated bodies, and the engine 10,000 loads
	WEFT_FUZZ_ROUNDS=10000 cargo test --profile checked --locked --quiet --no-default-features --lib fuzz_results
	WEFT_RANDOM_REQUESTS=10000 WEFT_MUTATED_BODIES=10000 pytest --quiet tests/server/test_random_requests.py \
		tests/server/test_mutated_bodies.py

watchdog: extension ## Check that no route blocks the event loop for over 20 ms (50 with large images); tests allow 100
	WEFT_MOST_MS=20 pytest --quiet tests/server/test_watchdog.py tests/server/test_media.py -k nobody_waits $(ARGS)

fmt: .venv/synced ## Format everything
	cargo fmt
	ruff format
	ruff check --fix-only --quiet

extension: .venv/synced $(PYO3_CONFIG_FILE) ## Build weft._native into python/weft if Rust sources have changed
	$(call step,build)
	@maturin develop --release --locked --uv $(if $(shell test .venv/installed -nt pyproject.toml && echo yes),--skip-install)
	@touch .venv/installed
	@python -m compileall -q python/weft

page: web/node_modules/.installed ## Build the page for writers from web/ into python/weft/server/web, where it is committed
	$(call step,page)
	python scripts/page.py build

docs: .venv/synced ## Build the documentation into site/, in strict mode and without the network
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=python mkdocs build --strict --quiet

docs-serve: .venv/synced ## Serve the documentation on http://127.0.0.1:8000 and rebuild it after changes
	PYTHONPATH=python mkdocs serve --dev-addr 127.0.0.1:8000

env: ## Print the variables for calling cargo directly, as shell commands
	@for name in PATH CC CXX LIBCLANG_PATH LLAMA_LIB_PROFILE RUSTFLAGS CARGO_TARGET_DIR PYO3_PYTHON PYO3_CONFIG_FILE PYO3_BUILD_EXTENSION_MODULE \
		CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER; do \
		if [ -n "$${!name:-}" ]; then printf 'export %s=%q\n' "$$name" "$${!name}"; fi; \
	done

clean: ## Remove everything that was built, including the environment
	rm -rf $(CARGO_TARGET_DIR) $(VENV) dist site web/node_modules
	rm -f python/weft/_native*.so

# The locked packages, and uv of one version to install them. `--inexact` keeps uv itself and the built extension. Their bytecode is
# compiled here, as pip does: a start that has to compile takes twice as long, every time where Python may not write it.
.venv/synced: uv.lock pyproject.toml
	@test -x .venv/bin/uv || { python3 -m venv $(VENV) && $(VENV)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }
	uv sync --frozen --inexact --quiet --compile-bytecode
	@touch $@

# The locked packages with which the page is built and checked.
web/node_modules/.installed: web/package-lock.json | .venv/synced
	$(call step,packages of the page)
	python scripts/page.py install
	@touch $@

# What maturin would write: the stable ABI of Python 3.11, whichever Python is at hand.
$(PYO3_CONFIG_FILE):
	@mkdir -p $(@D)
	@printf '%s\n' implementation=CPython version=3.11 target_abi=CPython-abi3-3.11 shared=true build_flags= \
		suppress_build_script_link_lines=false >$@
