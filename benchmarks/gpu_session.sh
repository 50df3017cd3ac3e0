#!/usr/bin/env bash
# Run the checks and the next jobs of benchmarks/gpu_queue.yaml on a GPU: see benchmarks/gpu_session.py and docs/reference/benchmarks.md.
#   benchmarks/gpu_session.sh [--device cuda|cpu] [--tiny] [--out DIR] [--seconds N] [--model FOLDER_OR_GGUF] [JOB...]
# PYTHON picks the interpreter. lmrl need not be installed: this checkout is put on the path.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TQDM_DISABLE=1
export HF_HUB_OFFLINE=1  # models are folders, and a machine without a network would wait for one
exec "${PYTHON:-python3}" -m benchmarks.gpu_session "$@"
