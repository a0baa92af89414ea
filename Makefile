# make demo       fine-tune a real BERT and draw its loss landscape (under 10 minutes on 2 cores)
# make test       the fast tests          make test-slow   real data and long training          make test-all   both
# make bench      speed against transformers' FlaxBert and PyTorch, in an environment of its own
# make bench-data  padding that buckets, grouping by length and packing save, on a real file
# make parity     outputs against PyTorch, live, in the same environment
# make lock       pin the dependencies anew
#
# make demo MODEL=bert-base-uncased DATA=reviews.csv TEXT=review LABEL=stars OUT=runs/reviews OPTIONS="--epochs=1"

PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
PIP = -m pip --disable-pip-version-check install --quiet
RUN = $(VENV)/bin/python
DEMO = $(if $(MODEL),--model="$(MODEL)") $(if $(DATA),--data="$(DATA)") $(if $(TEXT),--text="$(TEXT)") \
       $(if $(LABEL),--label="$(LABEL)") $(if $(OUT),--out="$(OUT)") $(OPTIONS)

.PHONY: demo test test-slow test-all lint bench bench-data parity lock install

demo: $(VENV)/.demo
	$(RUN) -m bertjax.demo $(DEMO)

test: $(VENV)/.demo
	$(RUN) -m pytest -q -n 2 --max-worker-restart 0 --dist loadfile -m "not slow"

test-slow: $(VENV)/.demo
	$(RUN) -m pytest -q -m slow

test-all: test test-slow

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

bench: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python benchmarks/peers.py $(OPTIONS)

bench-data: $(VENV)/.demo
	$(RUN) benchmarks/data.py $(OPTIONS)

parity: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python tests/make_golden.py --check

install: $(VENV)/.installed

$(VENV)/.installed: requirements/lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "bertjax needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "installing into $(VENV) (about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(RUN) $(PIP) --require-hashes -r requirements/lock.txt
	$(RUN) $(PIP) --no-deps -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.installed requirements/demo.txt
	$(RUN) $(PIP) --no-deps --require-hashes -r requirements/demo.txt
	@touch $@

$(BENCH_VENV)/.installed: benchmarks/requirements.txt requirements/demo.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python $(PIP) -r benchmarks/requirements.txt
	$(BENCH_VENV)/bin/python $(PIP) --no-deps --require-hashes -r requirements/demo.txt
	$(BENCH_VENV)/bin/python $(PIP) --no-deps -e .
	@touch $@

lock: $(VENV)/.installed
	$(RUN) $(PIP) uv
	$(VENV)/bin/uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-header --no-emit-index-url --quiet --upgrade -o requirements/lock.txt
