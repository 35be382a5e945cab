# The two commands of the README: `make demo` and `make test`. Both install what they need first.

.PHONY: demo test test-busy test-operators test-trainers chaos explore cluster as-root image lint generated bench screenshots setup test-setup lock clean
.DEFAULT_GOAL := demo
MAKEFLAGS += --no-print-directory
export PYTHONDONTWRITEBYTECODE :=  # tests start thousands of Pythons: each module is compiled once

# A real small training run, broken on purpose and recovered, in under a minute.
demo: setup
	@.venv/bin/sentinel demo

# All tests, four files at a time: most of them wait. `make test args="tests/core -k hang"` runs some of them, one after the other.
test: test-setup
	@.venv/bin/python -m pytest $(or $(args),-n 4 --dist loadfile --no-loadscope-reorder)

# Some tests over and over while others use the machine: `make test-busy args="tests/e2e -k hang" times=5`.
test-busy: test-setup
	@.venv/bin/python -m tests.busy $(if $(times),--times $(times)) $(args)

# Tests under the operators that `make test` leaves out: it builds them first, which takes long. docs/test-rig.md.
test-operators: test-setup
	@.venv/bin/python -m pytest tests/operators $(args)

# Real trainers below real launchers, broken; then docs/trainers.md. Installs gigabytes, or takes what there is:
# `make test-trainers venv=DIR args="tests/trainers -k torchrun"`.
test-trainers: test-setup
	@scripts/trainers.sh $(or $(venv),build/trainers) $(args)

# Kills Sentinel at 2000 instants and breaks nodes of a cluster 10000 times, instead of 200 each as `make test` does.
# `make chaos kills=500 incidents=1000 nodes=38 seed=7`, `make chaos args="-k nodes_leave"`. A new seed each time.
chaos: test-setup
	@CHAOS_KILLS=$(or $(kills),2000) CHAOS_INCIDENTS=$(or $(incidents),10000) CHAOS_NODES=$(or $(nodes),114) \
		CHAOS_SEED=$(or $(seed),new) .venv/bin/python -m pytest tests/chaos $(args)

# Hypothesis with new examples each time; `make test` always tries the same ones. `make explore args=tests/core`.
explore: test-setup
	@HYPOTHESIS_PROFILE=explore .venv/bin/python -m pytest -m hypothesis $(args)

# A real Kubernetes control plane, real nodes and fake ones, with Sentinel, until Ctrl-C. Prints how to break it.
cluster: as-root test-setup
	@.venv/bin/python -m tests.rig

as-root:  # said before minutes are spent on building
	@test "$$(id -u)" = 0 || { echo "make cluster: real nodes need root; run it as root"; exit 1; }

# The container image that deploy/ names, as an archive. `make image base=python.tar` puts it on an image of yours.
image: setup
	@.venv/bin/python -m scripts.image $(if $(base),--base $(base)) $(if $(arch),--arch $(arch)) $(if $(name),--name $(name)) $(archive)

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

# Every file that is made of tables and code: pages, dashboards, custom resources, chart. Commit what it changed.
generated: test-setup
	@.venv/bin/python -m scripts.generated

# Measurements against their goals; exits 1 on a miss. `make bench only=startup`, `make bench quick=1`.
bench: test-setup
	@.venv/bin/python -m tests.bench $(if $(quick),--quick) $(only)

# The pictures of the docs, taken in a real browser.
screenshots: test-setup
	@.venv/bin/python -m tests.web.screenshots docs/images

setup:
	@scripts/setup.sh

test-setup:
	@scripts/setup.sh test

# Pins every dependency anew, with hashes. pip-tools lives in a venv of its own.
COMPILE = build/lock-venv/bin/pip-compile -q --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host --no-header $(if $(upgrade),--upgrade)
lock: setup
	@test -x build/lock-venv/bin/pip-compile || { .venv/bin/python -m venv build/lock-venv && \
		build/lock-venv/bin/python -m pip install -q --disable-pip-version-check pip-tools==7.6.2; }
	@$(COMPILE) --extra demo --extra controller -o requirements.lock pyproject.toml
	@$(COMPILE) --extra demo --extra controller --extra dev -o requirements-dev.lock pyproject.toml

clean:
	@rm -rf .venv build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
