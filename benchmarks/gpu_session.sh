#!/usr/bin/env bash
# Run the checks and the next jobs of benchmarks/gpu_queue.yaml on a GPU: see benchmarks/gpu_session.py.
#   benchmarks/gpu_session.sh [--device cuda|cpu] [--tiny] [--out DIR] [--seconds N] [--model FOLDER_OR_GGUF] [JOB...]
# --device cpu --tiny tries all jobs on a CPU. --keep adds the results in DIR to benchmarks/results; then mark the jobs as done.
# For machines that take only small uploads, benchmarks/model_parts.py splits and joins the model's GGUF file.
# PYTHON picks the interpreter. lmrl need not be installed: this checkout is put on the path.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false TQDM_DISABLE=1
export HF_HUB_OFFLINE=1  # models are folders, and a machine without a network would wait for one
exec "${PYTHON:-python3}" -m benchmarks.gpu_session "$@"
