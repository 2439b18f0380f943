# Every target makes the virtual environment if it is missing: Python 3.11+ and make are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := dev,docs,search,worlds,mcp,lora,smollm2,serve,ray,z3
# One thread per test worker: small tensors gain nothing from more, and two workers would fight over the cores.
WORKERS ?= 2

.PHONY: train test torture lint bench docs clean

# Each training gets its own folder, so that nothing is ever overwritten.
train: $(READY)
	$(BIN)/turnwise train recipes/search-nano.yaml --output runs/search-nano-$$(date +%Y%m%d-%H%M%S)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Takes an hour or two; `make torture SCALE=0.1` a tenth of it.
SCALE ?= 1.0

torture: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --scale $(SCALE)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ops.py
	$(BIN)/python benchmarks/envs.py

# The site works without a server and without a network: open site/index.html.
docs: $(READY)
	$(BIN)/python docs/claims_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html in a browser"

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "turnwise needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "python cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $(READY)
