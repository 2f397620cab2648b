#!/bin/sh
# First run on a bare machine with torch: tests on its processor and GPU, then parity and times into $OUT.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONDONTWRITEBYTECODE=1
OUT=${OUT:-/tmp}
tests="python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider --import-mode=importlib cacheir-cuda/tests/test_conformance.py"
OMP_NUM_THREADS=1 timeout 150 $tests -n 12 >"$OUT/tests_processor.txt" 2>&1 &
timeout 240 python3 benchmarks/cuda/first_run.py "$OUT/first_run.json" 2>&1
wait
CACHEIR_TEST_DEVICE=cuda OMP_NUM_THREADS=2 timeout 150 $tests -n 4 -k "Float32 or WithoutGraphs" >"$OUT/tests_gpu.txt" 2>&1
tail -n 25 "$OUT/tests_processor.txt" "$OUT/tests_gpu.txt"
