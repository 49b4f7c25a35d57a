# One command per job; `make` alone lists them. Nothing has to be prepared: the first target that
# needs Python makes .venv and fills it with the versions pinned in requirements/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV ?= .venv
PY := $(VENV)/bin/python
FUZZ_SECONDS ?= 60
SOAK_BYTES ?= 10737418240
SOAK_SPARK_BYTES ?= 5368709120
SOAK_STEPS ?= 5000
SOAK_MESSAGES ?= 100000
SOAK_KILLS ?= 50
INTEROP_JARS ?= build/interop/jars
PYTEST_ARGS ?=
BENCH_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

# The first Python that is new enough and complete: 3.11 is what requirements/ is pinned for.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import ensurepip, os, sys, sysconfig, venv; \
	sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
	2>/dev/null && echo $$python && break; done)

# A strict editable install links every file by name, so a new or a removed file is a change of the
# build, while an edited .py is not: the names are in the stamp's name, the compiled files before it.
NAMES := $(shell find engine pyext spark_udf benches \( -name '*.py' -o -name '*.py[ix]' -o -name '*.pxd' -o -name py.typed \) \
	2>/dev/null | LC_ALL=C sort | cksum | cut -d' ' -f1)
COMPILED := $(wildcard csrc/*.c csrc/*.h pyext/*.pyx pyext/*.pxd)
READY := $(VENV)/.ready-$(NAMES)

.PHONY: help
help: ## list what can be done
	@echo "usage: make <target>"
	@echo
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

.PHONY: dev
dev: $(READY) ## build everything into .venv; again whenever csrc or pyext changed
	@echo "ready: $(PY)"

.PHONY: demo
demo: $(READY) ## Kafka's bytes written and read back, with rates; a bank that is killed, and balances, also in Spark
	@$(PY) examples/demo.py
	@$(PY) examples/bank.py

.PHONY: recording
recording: $(READY) ## record the demo again as text: docs/demo.txt
	@$(PY) docs/record_demo.py

.PHONY: pictures
pictures: $(READY) $(VENV)/.bench ## draw the README's pictures again: docs/images
	@$(PY) docs/build_pictures.py

APART := tests/packaging tests/benches
.PHONY: test
test: $(READY) ## all tests, lint and types among them (PYTEST_ARGS="-k name")
ifeq ($(PYTEST_ARGS),)
# Spark's tests have a process of their own: py4j waits with select(), which knows 1,024 files and no more. It runs beside the
# others, followed by those that mostly wait for processes; two cores are busy, and its words are shown at the end.
	@mkdir -p build; setsid sh -c 'status=0; for tests in tests/spark "$(APART)"; do $(PY) -m pytest $$tests || status=$$?; done; exit $$status' \
	> build/tests-apart.txt 2>&1 & apart=$$!; trap "kill -- -$$apart" INT TERM; \
	status=0; $(PY) -m pytest $(addprefix --ignore=,tests/spark $(APART)) || status=$$?; \
	echo "tests/spark $(APART):"; wait $$apart || status=$$?; cat build/tests-apart.txt; exit $$status
else
	@$(PY) -m pytest $(PYTEST_ARGS)
endif

.PHONY: bench
bench: $(READY) $(VENV)/.bench ## compare with the peers and with the machine's limit, and how costs grow (BENCH_ARGS="--only 'fetch.*'")
	@$(PY) -m benches --html build/bench/report.html --png build/bench/report.png $(BENCH_ARGS)

.PHONY: bench-kafka
bench-kafka: $(READY) $(VENV)/.bench ## Kafka's own perf tools, Spark's own Kafka source and sink, and commits beside ours, on a real broker; needs Java 17, and Maven the first time (BENCH_ARGS="--records 1000000")
	@$(PY) -m benches.kafka --jars $(INTEROP_JARS) $(BENCH_ARGS)

.PHONY: soak
soak: $(READY) ## memory of a large read, SOAK_BYTES (10 GiB) of disk; SOAK_STEPS (5000) random ones against the model; a copy of SOAK_MESSAGES (100000) through deaths; SOAK_KILLS (50) deaths of a Spark driver; threads for a minute
	@$(PY) -m tests.sim.txn_soak --steps $(SOAK_STEPS)
	@$(PY) -m tests.sim.copy_soak --messages $(SOAK_MESSAGES)
	@$(PY) -m tests.spark.sink_soak --kills $(SOAK_KILLS)
	@ONCELOG_SOAK=1 $(PY) -m pytest -q tests/client/test_threads.py
	@$(PY) -m benches.soak --bytes $(SOAK_BYTES)
	@$(PY) -m benches.spark_soak --bytes $(SOAK_SPARK_BYTES)

.PHONY: interop
interop: $(READY) ## a real Kafka reads what we write, and we what it leaves; needs Maven and Java 17
	@$(PY) -m interop --jars $(INTEROP_JARS)

.PHONY: docs
docs: $(READY) ## make again what the documents take from the code
	@$(PY) docs/build_all.py

.PHONY: lint
lint: $(READY) ## ruff, mypy --strict, clang-format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(addprefix -p ,oncelog $(wildcard benches examples interop tests)) | sed -E 's#[^ ]*/oncelog/_native/#pyext/#; s#[^ ]*/oncelog/spark/#spark_udf/#; s#[^ ]*__editable__[^/]*/oncelog/#engine/#'
	@format=$$(command -v $(VENV)/bin/clang-format clang-format | head -1); \
	if [ -n "$$format" ]; then find csrc -name '*.[ch]' -print0 | xargs -0 -r $$format --dry-run --Werror; \
	else echo "clang-format not found: C layout not checked"; fi

.PHONY: format
format: $(READY) ## let ruff and clang-format rewrite the files
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .
	@find csrc -name '*.[ch]' -print0 | xargs -0 -r $(VENV)/bin/clang-format -i

.PHONY: coverage
coverage: $(READY) ## tests with coverage of the Python code
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(PY) -m pytest --cov --cov-report=term --cov-report=html --ignore=tests/meta --ignore=tests/packaging $(PYTEST_ARGS)

.PHONY: sanitize
sanitize: $(READY) need-cmake ## C tests, then Python tests, under ASan and UBSan
	@cmake -S . -B build/cmake-sanitize -DONCELOG_SANITIZE=ON >/dev/null
	@cmake --build build/cmake-sanitize --parallel 4 >build/cmake-sanitize.txt || { cat build/cmake-sanitize.txt; exit 1; }
	@ctest --test-dir build/cmake-sanitize --output-on-failure --no-tests=error
	@rm -rf build/sanitized build/sanitize-address-undefined/lib*
	@echo "building the extensions with sanitizers"
	@ONCELOG_SANITIZE=address,undefined $(PY) -m pip install --quiet --no-build-isolation --no-deps --target build/sanitized .
	@PYTHONPATH=$(CURDIR)/build/sanitized PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" \
	$(PY) -m pytest --ignore=tests/meta --ignore=tests/packaging --hypothesis-profile=ci --capture=sys $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: need-cmake ## libFuzzer over the decoders, FUZZ_SECONDS (60) each; needs clang
	@command -v clang >/dev/null || { echo "libFuzzer comes with clang: install it first (Debian, Ubuntu: apt install clang; Fedora: dnf install clang compiler-rt)"; exit 1; }
	@cmake -S . -B build/cmake-fuzz -DONCELOG_FUZZ=ON -DCMAKE_C_COMPILER=clang >/dev/null
	@cmake --build build/cmake-fuzz --parallel 4 >build/cmake-fuzz.txt || { cat build/cmake-fuzz.txt; exit 1; }
	@for source in csrc/fuzz/fuzz_*.c; do \
		name=$$(basename $$source .c); \
		mkdir -p build/corpus/$$name build/crashes; \
		echo "$$name: $(FUZZ_SECONDS) s"; \
		build/cmake-fuzz/$$name -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
			-print_final_stats=1 -verbosity=0 -artifact_prefix=build/crashes/$$name- build/corpus/$$name $(wildcard tests/golden); \
	done

.PHONY: need-cmake
need-cmake:
	@command -v cmake >/dev/null || { echo "C alone is built with CMake: install it first (Debian, Ubuntu: apt install cmake; anywhere: pip install cmake)"; exit 1; }

.PHONY: annotate
annotate: $(READY) ## where Cython touches Python objects: build/annotate/pyext/*.html
	@ONCELOG_ANNOTATE=1 $(PY) setup.py --quiet build_clib build_ext --force --build-lib build/annotate/lib --build-temp build/annotate/temp
	@ls build/annotate/pyext/*.html

.PHONY: dist
dist: $(READY) ## sdist and wheel into dist/, checked
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist . >build/dist.txt 2>&1 || { cat build/dist.txt; exit 1; }
	@$(PY) -m twine check --strict dist/*

.PHONY: clean
clean: ## remove everything that was built, and .venv
	@rm -rf build dist $(VENV) *.egg-info .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	@find engine pyext spark_udf benches interop tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# ---------------------------------------------------------------------------- what the above needs

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
		echo "No usable Python found: oncelog needs Python 3.11 or newer with venv, ensurepip and Python.h"; \
		echo "(Debian, Ubuntu: apt install python3-venv python3-dev), or say which: make dev PYTHON=/path/to/python3.11"; \
		exit 1; fi
	@command -v $(CC) >/dev/null || { echo "No C compiler found: install one (Debian, Ubuntu: apt install gcc libc6-dev), or say which: make dev CC=clang"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.requirements: requirements/test.txt | $(PY)
	@echo "installing requirements/test.txt"
	@$(PY) -m pip install --quiet --requirement $<
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.requirements
	@echo "installing requirements/bench.txt"
	@$(PY) -m pip install --quiet --requirement $<
	@touch $@

$(READY): $(VENV)/.requirements setup.py pyproject.toml $(COMPILED)
	@echo "building oncelog"
	@mkdir -p build
	@$(PY) -m pip install --quiet --no-build-isolation --no-deps --config-settings editable_mode=strict --editable .
	@rm -f $(VENV)/.ready-*
	@touch $@
