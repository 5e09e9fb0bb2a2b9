# Both `make demo` and `make test` set up .venv first, once; later calls find it ready.
# PIP_ARGS passes options on to pip, such as an index that serves CPU builds of torch.

PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

DESIGNS := fsdp2 or sharded or ddp or two_optimizers or bf16 or restore or epoch_end or tp_only or zero1

.PHONY: demo test prove lint clean

demo: $(READY)  ## judge the reference implementation with the conformance suite
	$(BIN)/pytest --cplife-adapter=pytest_cplife.reference_impl:Adapter

test: $(READY) lint  ## the project's own checks and tests
	# GPUs have tests of their own, in scripts/gpu_gate.sh. Here they would get in the way: torch lets
	# no process compute gradients that was forked from one that has, where it sees a GPU.
	CUDA_VISIBLE_DEVICES= $(BIN)/pytest tests
	# Two at a time: ranks of one session wait for each other much of the time.
	# Of the healthy trainers one of each design, on two ranks; `make prove` has all, on all meshes.
	CUDA_VISIBLE_DEVICES= $(BIN)/pytest --cplife-selftest -n 2 \
	  -k "found or witness or (two_ranks and ($(DESIGNS)))"

prove: $(READY)  ## every planted fault, and every healthy trainer on each of its meshes
	CUDA_VISIBLE_DEVICES= $(BIN)/pytest --cplife-selftest -n 2 -k "not two_ranks"

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The build tools come first, so that the package itself is built with the pinned ones.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
