# `make` without arguments lists the commands. Requires Node 18 or later with npm, and for the local cluster Go, or a container
# engine with kind. Everything else is fetched or built once.
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# Prefer the workspace's own Node and tools over the system's.
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

.PHONY: help dev demo cluster e2e-cluster e2e-argocd e2e-dashboard test fuzz property model fleet survival plans lists scale bench artifacts packages image trial-images lint format generate clean audit sizing soak crashes year day reconnect interop compatibility install

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: install ## run Kellet on this machine until Ctrl-C (ONLY=kubernetes: only a cluster)
	@exec node dev/stack/main.ts $(if $(ONLY),--only $(ONLY))

demo: install ## run the full scenario in two minutes: provision, ingest, update, roll back, prove
	@exec node dev/demo/main.ts

cluster: install ## run a Kubernetes cluster with pods on this machine until Ctrl-C (ENGINE=kind|kubelet|kwok, IMAGES=files)
	@exec node dev/stack/pods/main.ts $(if $(ENGINE),--engine $(ENGINE)) $(IMAGES)

e2e-cluster: install ## install Kellet in such a cluster with Helm, upgrade it under load, kill pods, uninstall it
	@exec mocha --exit e2e/cluster/*.test.ts

e2e-argocd: install ## keep an installation as Git has it with the real Argo CD: waves, health, self-heal, prune, revert, the same ids
	@exec mocha --exit --reporter spec e2e/argocd/*.test.ts

e2e-dashboard: install ## test the dashboard in a browser (Chromium on PATH or in KELLET_CHROMIUM)
	@exec mocha --exit --require ./dev/stack/testing/test-stack.ts --timeout 180000 e2e/dashboard/*.test.ts

test: install ## run every check and test (ONLY=lint|unit|e2e, GREP=title)
	@exec node scripts/gate.ts

fuzz: install ## send 20,000 mutated requests to every route (REQUESTS=n, SEED=n)
	@KELLET_FUZZ_REQUESTS=$(or $(REQUESTS),20000) $(if $(SEED),KELLET_FUZZ_SEED=$(SEED)) exec mocha \
		--require ./dev/stack/testing/test-stack.ts e2e/tests/fuzz.test.ts

property: install ## run schemathesis over the OpenAPI document (ONLY=admin|viewer|device|platform, EXAMPLES=n)
	@exec node e2e/property/main.ts

model: install ## compare 2,000 random runs of a rollout with its model, and 60 of the whole system (RUNS=n, SYSTEM_RUNS=n, SEED=n)
	@KELLET_MODEL_RUNS=$(or $(RUNS),2000) $(if $(SEED),KELLET_MODEL_SEED=$(SEED)) mocha \
		--exit --require ./dev/stack/testing/test-services.ts apiserver/src/device-link/ota/rollouts/model.test.ts
	@KELLET_MODEL_SYSTEM_RUNS=$(or $(SYSTEM_RUNS),60) $(if $(SEED),KELLET_MODEL_SEED=$(SEED)) exec mocha \
		--exit --require ./dev/stack/testing/test-stack.ts e2e/tests/rollout-model.test.ts

year: install ## fill an installation with a year of data and measure ordinary calls there and in a small one (SCALE=1, ROUNDS=20, ONLY=pattern)
	@exec node bench/src/year/year.ts

day: install ## live a day, ten times as fast, with a year of data, and check that nothing is kept for too long (SCALE=0.004, SPEED=10, HOURS=24)
	@exec node bench/src/year/day.ts

plans: install ## check the plan of each statement of the last unit tests in a populated database (SCALE=0.01)
	@exec node bench/src/year/main.ts

fleet: install ## update 5,000 devices, some of which fail, lie, stay silent or join late (DEVICES=n)
	@KELLET_TEST_FLEET_DEVICES=$(or $(DEVICES),5000) exec mocha --exit \
		--require ./dev/stack/testing/test-stack.ts e2e/tests/fleet-rollout.test.ts

lists: install ## walk every list with 10,000 items while others come and go (ITEMS=n)
	@KELLET_TEST_LIST_ITEMS=$(or $(ITEMS),10000) exec mocha --exit --require ./dev/stack/testing/test-services.ts \
		apiserver/src/list-walk.test.ts

scale: install ## plan and schedule a rollout to 100,000 devices: what is planned happens, in bounded memory (DEVICES=n)
	@KELLET_TEST_DEVICES=$(or $(DEVICES),100000) mocha --exit --require ./dev/stack/testing/test-services.ts \
		apiserver/src/device-link/ota/rollouts/scale.test.ts
	@KELLET_TEST_DEVICES=$(or $(DEVICES),100000) exec mocha --exit --require ./dev/stack/testing/test-stack.ts \
		--grep 'stage by stage' e2e/tests/rollout-plan.test.ts

survival: install ## update 200 devices with a GiB while everything is killed in turn (DEVICES=n, BYTES=n, REPLICAS=n)
	@KELLET_TEST_IMAGE_DEVICES=$(or $(DEVICES),200) KELLET_TEST_IMAGE_BYTES=$(or $(BYTES),1073741824) \
		KELLET_TEST_IMAGE_REPLICAS=$(or $(REPLICAS),2) KELLET_ACCESS_LOG=errors exec mocha --exit \
		--require ./dev/stack/testing/test-stack.ts e2e/tests/rollout-survival.test.ts

reconnect: install ## kill the data plane under 5,000 connected devices, which must all return without a loss (DEVICES=n)
	@KELLET_TEST_RECONNECT_DEVICES=$(or $(DEVICES),5000) exec mocha --exit \
		--require ./dev/stack/testing/test-stack.ts e2e/tests/reconnect.test.ts

compatibility: install ## run the code before the last migration and this one on one database (PREVIOUS=commit)
	@KELLET_TEST_PREVIOUS_RELEASE=$(PREVIOUS) exec mocha --exit --require ./dev/stack/testing/test-services.ts \
		e2e/compatibility/*.test.ts

interop: install ## run the documented examples with other people's programs: mosquitto's clients, openssl, paho, promtool, Spark
	@exec mocha --exit --require ./dev/stack/testing/test-services.ts e2e/interop/*.test.ts

bench: install ## run benchmarks against their baselines (ONLY=prefix)
	@exec node bench/src/main.ts

crashes: install ## kill the API server, PostgreSQL and NATS ten times each during ingest (ROUNDS=n)
	@KELLET_TEST_CRASH_ROUNDS=$(or $(ROUNDS),10) exec mocha --exit --require ./dev/stack/testing/test-stack.ts \
		--grep 'during ingest' e2e/tests/crashes.test.ts

soak: install ## ingest points at 80 % of the maximum and compare the memory at the end with the beginning (SECONDS=600)
	@KELLET_BENCH_SOAK_SECONDS=$(or $(SECONDS),600) exec node bench/src/main.ts ingest-soak

sizing: install ## compute the size of an installation (DEVICES=n, POINT_SECONDS=n, POINTS_PER_REQUEST=n, POLL_SECONDS=n, …)
	@exec node scripts/scaling/main.ts $(foreach name,DEVICES POINT_SECONDS POINTS_PER_REQUEST POLL_SECONDS ARTIFACT_MEGABYTES \
		ROLLOUT_HOURS HOT_HOURS,$(if $($(name)),--$(shell echo $(name) | tr A-Z_ a-z-) $($(name))))

artifacts: install ## store, hash and read an artifact of a GiB in every store, in bounded memory (BYTES=n, at most 4294967295)
	@KELLET_TEST_ARTIFACT_BYTES=$(or $(BYTES),1073741824) exec mocha --exit \
		--require ./dev/stack/testing/test-services.ts apiserver/src/device-link/ota/artifacts/artifact-reader.test.ts

packages: install ## build the client, the device, kellet-verify and the kubectl plugin as packages (ONLY=client|device|verify|kubectl)
	@exec node packaging/packages.ts $(ONLY)

image: install ## build the container image without a container engine (ARCHITECTURE=amd64|arm64|all)
	@exec node packaging/image.ts $(if $(ARCHITECTURE),--architecture $(ARCHITECTURE)) $(if $(NAME),--name $(NAME))

trial-images: install ## build images of PostgreSQL and NATS for trials where the official ones cannot be pulled
	@exec node dev/trial/main.ts

audit: install ## ask npm's database of advisories about the packages that are shipped (needs its network)
	@exec node scripts/advisories/main.ts

lint: install ## check formatting, lint rules, contract, generated code and types
	@exec node scripts/gate.ts --only lint

format: install ## format all sources
	@exec prettier --write --log-level warn .

generate: install ## regenerate generated code
	@exec node scripts/generate.ts

clean: install ## remove the local state (.kellet), keep node_modules and the cache of built programs
	@exec node scripts/clean.ts

# Installs packages if the lock file has changed since the last installation.
install:
	@sh scripts/install.sh
