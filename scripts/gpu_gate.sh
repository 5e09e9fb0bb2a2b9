#!/usr/bin/env bash
# What can only be seen on a GPU, in under ten minutes and without anybody watching:
#
#     scripts/gpu_gate.sh            # needs one GPU; shows more where there are several
#     scripts/gpu_gate.sh --dry-run  # the same steps on the CPU, to try the script itself
#
# It takes the environment in .venv, or the Python named by PYTHON, if its torch sees a GPU, and
# sets up .venv otherwise (PIP_ARGS passes options on to pip, such as an index of CUDA builds).
# One line per step at the end; the exit status is 0 if every step passed, 1 if one did not, and 2
# if there is nothing to run the gate on.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

DEVICE=cuda
[ "${1:-}" = --dry-run ] && DEVICE=cpu
REFERENCE=pytest_cplife.reference_impl:Adapter
# The whole suite once; elsewhere the groups in which a device makes a difference.
CORE="PLACE or PARAM or GRAD or SAVE or LOAD or RNG or GO"
LOGS=$(mktemp -d "${TMPDIR:-/tmp}/gpu-gate-XXXXXX")
LIMIT=540 # seconds for all steps together
SUMMARY=()
STATUS=0

# Under NVML's check, asking for GPUs leaves the driver alone, as the ranks need it.
export PYTORCH_NVML_BASED_CUDA_CHECK=1

fit() { # fit PYTHON: whether it can run the gate
    "$1" - "$DEVICE" 2>/dev/null <<'CHECK'
import sys
import pytest, xdist, hypothesis, torch
sys.exit(sys.argv[1] == "cuda" and torch.cuda.device_count() == 0)
CHECK
}

choose_python() {
    local candidate
    for candidate in .venv/bin/python "${PYTHON:-python3}"; do
        if command -v "$candidate" >/dev/null && fit "$candidate"; then
            PY=$candidate
            return
        fi
    done
    echo "no environment with a torch that sees a GPU; setting one up in .venv"
    if make -s .venv/.ready && fit .venv/bin/python; then
        PY=.venv/bin/python
        return
    fi
    echo "gpu_gate: there is no GPU, or no torch that sees one (PIP_ARGS='--index-url URL' names an" \
        "index of CUDA builds; --dry-run tries the script on the CPU)" >&2
    exit 2
}

step() { # step NAME COMMAND...: run it, within what is left of the time
    local name=$1 left began status
    shift
    LOG=$LOGS/${#SUMMARY[@]}.log
    left=$((LIMIT - SECONDS))
    began=$SECONDS
    echo "== $name"
    if [ "$left" -lt 10 ]; then
        status=124
        : >"$LOG"
    else
        timeout --kill-after=20 "$left" "$@" >"$LOG" 2>&1
        status=$?
    fi
    tail -n 3 "$LOG"
    if [ "$status" -eq 0 ]; then
        SUMMARY+=("passed   $name ($((SECONDS - began)) s)")
    else
        STATUS=1
        [ "$status" -eq 124 ] && name="$name: not finished in time"
        SUMMARY+=("FAILED   $name ($((SECONDS - began)) s, status $status)")
        echo "-- the end of its output:"
        tail -n 60 "$LOG"
    fi
}

suite() { # suite BACKEND MESH [OPTION...]: the conformance suite on the reference
    local backend=$1 mesh=$2
    shift 2
    step "the suite on the reference, $backend, $mesh $*" \
        "$PY" -m pytest -q -p no:cacheprovider "--cplife-adapter=$REFERENCE" \
        "--cplife-device=$DEVICE" "--cplife-backend=$backend" "--cplife-mesh=$mesh" "$@"
}

choose_python
GPUS=$("$PY" -c 'import torch; print(torch.cuda.device_count())')
echo "torch $("$PY" -c 'import torch; print(torch.__version__)'), $GPUS GPU(s), $PY"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
# From a checkout nothing but the plugin's own entry has to be installed.
"$PY" -c 'import pytest_cplife' 2>/dev/null ||
    step "installing the package" "$PY" -m pip install --quiet --no-deps -e .

step "launchers on $DEVICE" "$PY" -m pytest -q -rs -p no:cacheprovider tests/launchers_cuda
if [ "$DEVICE" = cuda ] && ! grep -qE '(^| )[0-9]+ passed' "$LOG"; then
    STATUS=1
    SUMMARY+=("FAILED   launchers: no test has passed")
fi
suite gloo cp=2
if [ "$DEVICE" = cuda ]; then
    suite nccl dp=1 -k "$CORE"
    [ "$GPUS" -ge 2 ] && suite nccl cp=2 -k "$CORE"
    [ "$GPUS" -ge 4 ] && suite nccl dp=2,cp=2 -k "$CORE"
fi
suite gloo dp=2,cp=2 -k "$CORE"
suite gloo cp=2 --cplife-launcher=threads -k "$CORE"

echo
echo "gpu_gate on $GPUS GPU(s), $SECONDS s, output in $LOGS"
printf '%s\n' "${SUMMARY[@]}"
exit "$STATUS"
