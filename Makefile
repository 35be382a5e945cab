# The two commands of the README: `make demo` and `make test`. Both install what they need first.

.PHONY: demo test chaos cluster lint bench setup test-setup lock clean
.DEFAULT_GOAL := demo
MAKEFLAGS += --no-print-directory

# A real small training run, broken on purpose and recovered, in under a minute.
demo: setup
	@.venv/bin/sentinel demo

# All tests. `make test args="tests/core -k hang"` runs some of them.
test: test-setup
	@.venv/bin/python -m pytest $(args)

# Kills Sentinel at 2000 instants instead of the 200 of `make test`. `make chaos kills=500 seed=7`.
chaos: test-setup
	@CHAOS_KILLS=$(or $(kills),2000) CHAOS_SEED=$(seed) .venv/bin/python -m pytest tests/chaos $(args)

# A real Kubernetes control plane, one real node and some fake ones, until Ctrl-C. Prints how to look at it.
cluster: test-setup
	@.venv/bin/python -m tests.rig

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

# Measurements against their goals; exits 1 on a miss. `make bench only=startup`, `make bench quick=1`.
bench: test-setup
	@.venv/bin/python -m tests.bench $(if $(quick),--quick) $(only)

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
