# What a developer types. `make` alone lists the targets. `make demo` and `make test` set everything up by themselves:
# they need a Python (3.11, 3.12 or 3.13) and nothing else.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# The environment: uv comes by pip into .tools (apart, so that a sync cannot remove it) and installs uv.lock into .venv.
UV_VERSION := 0.13.9
PYTHON ?= $(shell for candidate in .venv/bin/python python3 python3.13 python3.12 python3.11; do \
	"$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo "$$candidate" && break; done)
UV := .tools/bin/uv
UV_SYNC := UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=.venv $(UV) sync --locked $(shell [ -t 2 ] || echo --quiet)
BIN := .venv/bin
# Machines for builds often forbid bytecode. Here hundreds of processes are started, and each would compile its libraries.
unexport PYTHONDONTWRITEBYTECODE
say = @echo "==>"

# Set by the caller: make demo PROMPT="…", make serve ARGS="--port 9000", make bench NAME=single-node ARGS=--quick,
# make chaos SEED=7 MINUTES=5
SEED ?= 1
MINUTES ?= 60
# make images REGISTRY=registry.office.example/shoal DOCKER=podman BASE=...
REGISTRY ?= ghcr.io/shoal-dev
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' shoal/__init__.py)
DOCKER ?= docker
BASE ?=
PROMPT ?= Explain in three sentences why the sky is blue.
# By way of the environment: quotes and dollars in a prompt are not the shell's.
export PROMPT
MANIFEST ?= examples/smollm2.yaml
ARGS ?=
NAME ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

.PHONY: setup
setup: .venv/.synced-dev ## install shoal with everything for development into .venv

.PHONY: demo
demo: .venv/.synced-run ## compile a small model, run it as two stages and ask it something
	$(say) "running $(MANIFEST) on this machine"
	@$(BIN)/shoal run $(MANIFEST) --prompt "$$PROMPT" $(ARGS)

.PHONY: serve
serve: .venv/.synced-run ## serve the demo model's OpenAI API until Ctrl-C
	@$(BIN)/shoal run $(MANIFEST) $(ARGS)

.PHONY: test
test: test-unit ## run the unit tests, then the integration tests
	$(say) "integration tests: real models, processes and sockets on this machine (minutes)"
	@$(BIN)/python -m pytest tests/integration tests/clients -m "not slow" $(ARGS)

.PHONY: test-unit
test-unit: .venv/.synced-dev ## run the unit tests (pure, under three minutes)
	$(say) "unit tests: no network, no model"
	@$(BIN)/python -m pytest tests/unit -m "not slow" --numprocesses auto --dist worksteal -p no:schemathesis $(ARGS)

.PHONY: test-all
test-all: .venv/.synced-dev ## run every test, the slow ones too
	$(say) "all tests, with the slow ones"
	@$(BIN)/python -m pytest tests $(ARGS)

.PHONY: test-cluster
test-cluster: .venv/.synced-dev ## run the tests on a real Kubernetes control plane, built once with Go
	$(say) "cluster tests: etcd, API server, controller manager and scheduler on loopback"
	@PYTHONPATH=tests/cluster/lib $(BIN)/python -m testcluster
	@$(BIN)/python -m pytest tests -m "cluster and not slow" $(ARGS)

.PHONY: images
images: ## build the container images with $(DOCKER) (default docker): operator, router, gateway, compile, stage
	$(say) "container images as $(REGISTRY)/NAME:$(VERSION)"
	@for image in operator:operator router:router cli:gateway stage_image:compile stage_image:stage; do \
		$(DOCKER) build --file $${image%%:*}/Dockerfile --target $${image##*:} --tag $(REGISTRY)/$${image##*:}:$(VERSION) \
			--build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) \
			$(if $(BASE),--build-arg BASE=$(BASE)) . || exit 1; \
	done

.PHONY: e2e
e2e: .venv/.synced-dev ## run the end-to-end tests on four PCs with real kubelets (root, Debian packages; many minutes)
	$(say) "building Kubernetes, CoreDNS, kube-router and Helm from Go modules, once"
	@PYTHONPATH=tests/cluster/lib $(BIN)/python -m testcluster --nodes
	$(say) "end-to-end tests: images, containerd, kubelets, the chart, a lost PC"
	@$(BIN)/python -m pytest tests/e2e -m e2e $(ARGS)

.PHONY: e2e-short
e2e-short: .venv/.synced-dev ## the short form of e2e: clients are answered while stages are killed and deleted (minutes)
	$(say) "building Kubernetes, CoreDNS, kube-router and Helm from Go modules, once"
	@PYTHONPATH=tests/cluster/lib $(BIN)/python -m testcluster --nodes
	$(say) "end-to-end, the short form"
	@$(BIN)/python -m pytest tests/e2e/test_e2e_clients.py -m e2e $(ARGS)

.PHONY: test-images
test-images: .venv/.synced-dev ## build the container images with buildah and look into them (root, Debian packages; minutes)
	$(say) "container images on a Debian base, built in a chroot"
	@$(BIN)/python -m pytest tests/e2e/test_e2e_images.py -m e2e $(ARGS)

.PHONY: chaos
chaos: .venv/.synced-dev ## hit a local pipeline for MINUTES (default 60) by SEED while clients check every answer
	$(say) "chaos: seed $(SEED), $(MINUTES) minutes; the report goes to chaos-$(SEED).json"
	@PYTHONPATH=tests/chaos/lib $(BIN)/python -m chaos --seed $(SEED) --minutes $(MINUTES) \
		--report chaos-$(SEED).json $(ARGS)

.PHONY: test-speculation
test-speculation: .venv/.synced-dev ## compare every way to speculate with plain decoding, on real stages (half an hour)
	$(say) "speculation on real stages: 32 prompts, every source, split, engine and depth"
	@$(BIN)/python -m pytest tests/integration/test_speculation_texts.py -m slow $(ARGS)

.PHONY: lint
lint: .venv/.synced-dev ## ruff, mypy --strict and the layers between the packages
	$(say) "ruff check"
	@$(BIN)/ruff check .
	$(say) "ruff format --check"
	@$(BIN)/ruff format --check .
	$(say) "mypy"
	@$(BIN)/mypy
	$(say) "import-linter"
	@$(BIN)/lint-imports

.PHONY: generate
generate: .venv/.synced-dev ## write the CRD, the protobuf stubs and the references anew
	$(say) "protobuf stubs from shoal/wire/stage.proto"
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --pyi_out=. shoal/wire/stage.proto
	$(say) "crds/ from shoal.resource"
	@$(BIN)/python -m shoal.resource.crd
	@cp crds/*.yaml charts/shoal/files/crds/
	$(say) "docs/reference/cli.md from the commands"
	@$(BIN)/python -m shoal_cli.reference docs/reference/cli.md
	$(say) "docs/reference/sharded-model.md from the CRD"
	@$(BIN)/python -m shoal.resource.reference docs/reference/sharded-model.md

.PHONY: docs
docs: .venv/.synced-dev ## build the documentation into site/; a link that leads nowhere ends it
	$(say) "mkdocs build --strict"
	@NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

.PHONY: bench
bench: .venv/.synced-dev ## run a benchmark: make bench NAME=single-node (no NAME: list them)
	@$(BIN)/python -m bench $(if $(NAME),$(NAME),--list) $(ARGS)

.PHONY: clean
clean: ## remove caches and build output; models stay in ~/.cache/shoal
	$(say) "removing caches and build output"
	@rm -rf site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	@find . -path ./.venv -prune -o -path ./.tools -prune -o -name __pycache__ -type d -exec rm -rf {} +

# A stamp is newer than the lock when the environment holds what the lock says. Running needs less than developing.
.venv/.synced-run: uv.lock pyproject.toml $(UV)
	$(say) "installing shoal and its libraries into .venv (the first time: some 350 MB)"
	@$(UV_SYNC) --python $(PYTHON) --extra cli --no-default-groups --inexact
	@touch $@

.venv/.synced-dev: uv.lock pyproject.toml $(UV)
	$(say) "installing shoal, its libraries and the development tools into .venv (the first time: some 700 MB)"
	@$(UV_SYNC) --python $(PYTHON) --all-extras --all-groups
	@touch $@ .venv/.synced-run

$(UV):
	@[ -n "$(PYTHON)" ] || { echo "shoal needs Python 3.11, 3.12 or 3.13, and none is on the PATH:" \
		"install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(say) "fetching uv $(UV_VERSION) into .tools with $(PYTHON)"
	@$(PYTHON) -m venv --clear .tools >/dev/null 2>&1 || { rm -rf .tools; echo "$(PYTHON) cannot make a virtual" \
		"environment: install its venv module (Debian and Ubuntu: sudo apt install python3-venv)," \
		"or name another Python: make PYTHON=/path/to/python3" >&2; exit 1; }
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) \
		|| { rm -rf .tools; echo "uv could not be installed by pip: is there a way to the package index?" >&2; exit 1; }
