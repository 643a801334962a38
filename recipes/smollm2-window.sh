#!/usr/bin/env bash
# Maps that see their neighbours on SmolLM2-135M: capture and solve every candidate of each split, then judge
# them in parts, the most telling first. Every step resumes; what is finished is kept. `make smollm2-window`
# does one thing after another. With SIDE=1 splits run side by side, and so do their parts but for those joined
# by a comma; many small kernels keep one process from filling a GPU, so use it there, with BATCH=25.
set -euo pipefail
: "${RIDGEFIT:=ridgefit}" "${PYTHON:=python3}"
: "${MODEL:=work/models/smollm2-135m-instruct}" "${OUT:=work/smollm2-window}"
: "${SPLITS:=15 11 19 8}" "${PARTS:=needles nll,long ablations,rows cheap}"
: "${CALIBRATION:=bundled:calibration}" "${DEVELOPMENT:=bundled:development}"
: "${FRACTION:=1}" "${BATCH:=4}" "${WINDOWS:=72}" "${SIDE:=0}" "${MORE:=}"
recipes=$(dirname "$0")

maps() { # SPLIT: capture and solve
  local at=$OUT/s$1
  mkdir -p "$at"
  $RIDGEFIT capture "$MODEL" --recipe "$recipes/smollm2-window.yaml" --split "$1" --data "$CALIBRATION" \
    --max-windows "$WINDOWS" --resume --quiet --out "$at/capture"
  if [ ! -f "$at/maps/ridgefit.json" ]; then
    $RIDGEFIT solve "$at/capture" --recipe "$recipes/smollm2-window.yaml" --model "$MODEL" --probe-batch "$BATCH" \
      $MORE --quiet --out "$at/maps"
  fi
}

part() { # SPLIT PART: one evaluation
  local at=$OUT/s$1 recipe=$recipes/smollm2-window-$2.yaml
  if [ -f "$at/$2/evaluation.json" ]; then return; fi
  sed -e "s|bundled:development|$DEVELOPMENT|g" "$recipe" > "$at/$2.yaml"
  $RIDGEFIT eval "$MODEL" --recipe "$at/$2.yaml" --maps "$at/maps" --batch "$BATCH" --fraction "$FRACTION" \
    --quiet --out "$at/$2"
}

said() { # WHAT COMMAND...: with the time it took, and a log of its own
  local what=$1 start=$SECONDS
  shift
  if "$@" > "$OUT/$what.log" 2>&1; then
    echo "$what: done in $((SECONDS - start)) s"
  else
    echo "$what: exit status $?; see $OUT/$what.log" | tee -a "$OUT/failed" >&2
    return 1
  fi
}

parts() { # SPLIT PART,PART: one after another
  for name in ${2//,/ }; do said "s$1-$name" part "$1" "$name"; done
}

one_split() {
  said "s$1-maps" maps "$1"
  for group in $PARTS; do
    if [ "$SIDE" = 1 ]; then parts "$1" "$group" & else parts "$1" "$group"; fi
  done
  wait
}

mkdir -p "$OUT"
rm -f "$OUT/failed"
for split in $SPLITS; do
  if [ "$SIDE" = 1 ]; then one_split "$split" & else one_split "$split"; fi
done
wait
$PYTHON "$recipes/window_table.py" "$OUT" | tee "$OUT/table.md"
[ ! -f "$OUT/failed" ]
