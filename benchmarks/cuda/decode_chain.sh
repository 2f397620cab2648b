#!/bin/sh
# The decode chain on a bare machine with torch and a GPU: decode_chain.sh MODEL [PART...], results into $OUT.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONDONTWRITEBYTECODE=1
exec python3 benchmarks/cuda/decode_chain.py "${OUT:-/tmp}/decode_chain_$1.json" "$@"
