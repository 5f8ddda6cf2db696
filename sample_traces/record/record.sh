#!/usr/bin/env bash
# Records every sample that is made here, all ranks on one GPU: ./record.sh PLANS OUT
# PLANS holds vpp.json, 1f1b.json and 1f1b-small.json, written by `make-plans.sh` on any machine with tracekit.
# Eight connections a rank: more, and eight ranks exhaust what MPS has.
# Under MPS each rank gets its share of the card and runs beside the others, so waiting and bubbles are real.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); plans=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); work=$(mktemp -d)
ranks() { # ranks N COMMAND…: runs it with a clean environment and a share of the card a rank
  local share=$((100 / $1)); shift
  env -i PATH="$PATH" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" HOME="$work" OMP_NUM_THREADS=1 NCCL_BUFFSIZE=1048576 CUDA_DEVICE_MAX_CONNECTIONS=8 \
    CUDA_MPS_PIPE_DIRECTORY="$work/mps" CUDA_MPS_LOG_DIRECTORY="$work/log" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$share \
    timeout 150 "$@" 2>&1 | grep -v -i -e usdt -e warn -e 'device ID' -e 'return ' || true
}
export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/log
mkdir -p "$work/mps" "$work/log"
nvidia-cuda-mps-control -d
trap 'echo quit | nvidia-cuda-mps-control' EXIT
cd "$here"
ranks 1 python3 -c 'import torch; torch.zeros(1, device="cuda")'  # the MPS server starts with its first client
ranks 8 python3 pipeline.py "$plans/vpp.json" "$out/vpp-overlap" --expert 2 --offload --annotate --tokens 256 --hidden 32768
ranks 4 python3 pipeline.py "$plans/1f1b.json" "$out/1f1b-noshapes" --no-shapes --layers 2
for run in a b; do ranks 2 python3 pipeline.py "$plans/1f1b-small.json" "$out/steps/$run" --no-shapes --steps 8; done
ranks 2 python3 pipeline.py "$plans/1f1b-small.json" "$out/steps/straggler" --no-shapes --steps 8 --straggler 1
ranks 4 python3 reload.py "$out/reload-overlap"
ranks 1 python3 single.py recompute "$out/recompute"
ranks 1 python3 single.py compile "$out/compile"
