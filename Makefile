# One command for each thing to do here; `make` alone lists them. Node 18 or later with npm is all that must be
# installed (and Go, or a container engine with kind, for the local cluster): everything else is fetched or built once.
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The workspace's own Node and tools come first, whatever the machine has.
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

.PHONY: help dev demo test fuzz property bench client lint format generate clean install

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: install ## the whole of Kellet on this machine, until Ctrl-C (ONLY=kubernetes: just a cluster)
	@exec node dev/stack/main.ts $(if $(ONLY),--only $(ONLY))

demo: install ## the whole story in two minutes: provisioned, measured, updated, stopped, proven
	@exec node dev/demo/main.ts

test: install ## every check and test (ONLY=lint|unit|e2e, GREP=title)
	@exec node scripts/gate.ts

fuzz: install ## 20,000 mutated requests to every route (REQUESTS=n, SEED=n)
	@KELLET_FUZZ_REQUESTS=$(or $(REQUESTS),20000) $(if $(SEED),KELLET_FUZZ_SEED=$(SEED)) exec mocha \
		--require ./dev/stack/testing/test-stack.ts e2e/tests/fuzz.test.ts

property: install ## schemathesis over the OpenAPI document (ONLY=admin|viewer|device|platform, EXAMPLES=n)
	@exec node e2e/property/main.ts

bench: install ## measurements beside their baselines (ONLY=prefix)
	@exec node bench/src/main.ts

client: install ## the TypeScript client as a package for other projects (client/dist)
	@exec node client/pack.ts

lint: install ## formatting, lint rules, contract, generated code, types
	@exec node scripts/gate.ts --only lint

format: install ## lay out all sources
	@exec prettier --write --log-level warn .

generate: install ## make generated code again
	@exec node scripts/generate.ts

clean: install ## remove the local state (.kellet), keep node_modules and the cache of built programs
	@exec node scripts/clean.ts

# Packages are installed when the lock file is not the one they were installed from.
install:
	@sh scripts/install.sh
