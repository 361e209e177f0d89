# make train [ARGS="env=walker-run reg=swr"]   set up and run the main job
# make test                                     set up, then ruff, mypy and the tests
# make docs                                     the site of docs/, strictly checked, in site/
# make test-integrations                         the tests of all other libraries' loops
# make notebooks                                 execute examples/notebooks and write their outputs
# make wheel                                     wheel and sdist into dist/, the wheel installed elsewhere and used
# make test-gpu [GPU_PYTHON=python3]             whether the GPU path is right and how fast it is, with a Python that has torch and CUDA
# make test-ray                                  a sweep on two Ray nodes, one of which is killed
# make test-slurm                                a sweep on a Slurm whose time limit it meets (Debian, as root: installs Slurm)

ARGS ?= env=cheetah-run reg=spectral preset=demo
# The first interpreter that is new enough and has wheels for everything: 3.11 or 3.12.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/installed
DOCS_STAMP := .venv/docs-installed

# A Python whose torch fits the GPU's driver; .venv has the torch of pip's index, on Linux one with CUDA.
GPU_PYTHON ?= python3

.PHONY: train test docs wheel notebooks test-integrations test-gpu test-ray test-slurm
train: $(STAMP)
	$(BIN)/python -m rl_plasticity.train $(ARGS)

# mypy runs beside the tests; both must succeed.
test: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy & mypy=$$!; $(BIN)/python -m pytest -n auto --dist worksteal && wait $$mypy

notebooks: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group notebooks
	$(BIN)/python scripts/notebooks.py

# With --quiet no warning would be counted. Material's own notice of what mkdocs 2 will be is no warning of ours.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test-integrations: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group integrations
	$(BIN)/python -m pytest -n auto tests/integrations tests/learning/test_kept.py

wheel: $(STAMP)
	$(BIN)/python scripts/check_wheel.py

test-gpu:
	$(GPU_PYTHON) scripts/check_gpu.py

test-ray: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]"
	$(BIN)/python scripts/test_ray.py

test-slurm: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[slurm]"
	PYTHON=$(BIN)/python scripts/test_slurm.sh

# torch first: its pinned version decides which build pip takes, and nothing after it may change that. The first help
# takes seconds, of which later ones take none.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed, and none was found; say PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[rl,images,video,parallel,minatar,fine-tuning]" --group dev
	$(BIN)/python -m rl_plasticity.train --help >/dev/null
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	touch $(DOCS_STAMP)
