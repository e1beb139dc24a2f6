# Two commands matter: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: api package-test first-result demo docs test quick long servers lint types format clean peers bench-overhead bench-resume images recbole bench-recsys bench-bridge

demo: .venv/demo.stamp
	$(BIN)/treadle demo digits

docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

# Three workers on two cores: while one waits for processes that it started, two work. A second thread in each would only
# take turns with the others, and burn what it waits.
# Compiled modules are kept, whatever the shell says, for the processes that tests start.
test quick long: export OMP_NUM_THREADS = 1
test quick long: export PYTHONDONTWRITEBYTECODE =

test: lint types servers
	$(BIN)/python -m pytest -n 3 --dist worksteal

quick: .venv/dev.stamp
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

# What takes an hour: whether a test notices each wrong line of the core, and kills of runs, and of searches on a server.
long: .venv/dev.stamp servers
	$(BIN)/python -m benchmarks.mutation
	$(BIN)/python -m benchmarks.resume.crash --no-write
	TREADLE_LONG=1 $(BIN)/python -m pytest tests/search/test_servers.py tests/data/sources tests/crash/test_kill_points.py

# Databases for the tests of searches, which start them on loopback, in folders of their own, and skip where they are not.
servers: .venv/dev.stamp
	@$(BIN)/python -m tests.search.servers

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.stamp
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable ".[demo]"
	touch $@

.venv/docs.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable ".[demo,docs]"
	touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable ".[dev]"
	touch $@

# The wheel and the source distribution in empty environments, with the oldest and the newest dependencies.
# ROWS="3.11-oldest" takes some of the rows; KEEP=DIR keeps the environments, which have some GB each.
package-test: .venv/dev.stamp
	$(BIN)/python -m benchmarks.package $(ROWS) $(if $(KEEP),--keep $(KEEP)) $(if $(WRITE),--write)

# Seconds from `pip install` to the page of a first run.
first-result: .venv/dev.stamp
	$(BIN)/python -m benchmarks.package.first_result

# The list of public names and signatures, after it was changed on purpose.
api: .venv/dev.stamp
	$(BIN)/python -m benchmarks.docs.public_api

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache

# The peers that Treadle is measured against live apart: what they pull in must not reach the tests.
peers: .venv-peers/peers.stamp

bench-overhead: .venv-peers/peers.stamp
	.venv-peers/bin/python -m benchmarks.loop.overhead

bench-resume: .venv-peers/peers.stamp
	.venv-peers/bin/python -m benchmarks.resume.exactness --write

.venv-peers/bin/python:
	$(PYTHON) -m venv .venv-peers

.venv-peers/peers.stamp: .venv-peers/bin/python benchmarks/peers-requirements.txt pyproject.toml constraints.txt
	.venv-peers/bin/python -m pip install --quiet --constraint constraints.txt --editable . \
		--requirement benchmarks/peers-requirements.txt
	touch $@

# The pictures of docs/images, from runs that are made for them; needs Chromium.
images: .venv/dev.stamp
	$(BIN)/python -m benchmarks.docs.diagrams
	$(BIN)/python -m benchmarks.docs.screenshots

# RecBole runs with older versions of what is around it, in an environment of its own.
recbole: .venv-recbole/recbole.stamp

bench-recsys: .venv-recbole/recbole.stamp .venv/dev.stamp
	$(BIN)/python -m benchmarks.recsys.recbole --write

bench-bridge: .venv-recbole/recbole.stamp .venv/dev.stamp
	$(BIN)/python -m benchmarks.recsys.bridge --write

.venv-recbole/bin/python:
	$(PYTHON) -m venv .venv-recbole

.venv-recbole/recbole.stamp: .venv-recbole/bin/python benchmarks/recbole-requirements.txt constraints.txt
	.venv-recbole/bin/python -m pip install --quiet --constraint constraints.txt \
		--requirement benchmarks/recbole-requirements.txt
	touch $@
