#!/bin/sh
# Prompts and batches on a bare machine with torch: the kit's head checks on the GPU beside parity and times, into $OUT.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONDONTWRITEBYTECODE=1
OUT=${OUT:-/tmp}
timeout "${LIMIT:-170}" python3 benchmarks/cuda/batch_run.py "$OUT/batch_run.json" "$@" 2>&1 | tee "$OUT/batch_run.txt"
tests="python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider --import-mode=importlib cacheir-cuda/tests/test_conformance.py"
CACHEIR_TEST_DEVICE=cuda OMP_NUM_THREADS=2 timeout 70 $tests -n 4 -k "${CHECKS:-heads_agree}" >"$OUT/tests_gpu.txt" 2>&1
tail -n 25 "$OUT/tests_gpu.txt"
