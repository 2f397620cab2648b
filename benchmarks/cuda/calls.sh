#!/bin/sh
# The five calls that measure what report.md lists as not measured: calls.sh NUMBER. plan.md says what each part shows,
# plan_times.py how long it takes. Everything goes to $OUT as one archive per call; each part has a limit of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src:benchmarks/cuda"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
SCRATCH=${TMPDIR:-/tmp}/cacheir-calls
OUT=${OUT:-$SCRATCH/out} PACK=${PACK:-.vllm_pack} began=$(date +%s)
export CACHEIR_MODELS=/dev/shm/models
made=$SCRATCH/made_${1:-}
SMALL="qwen3-0.6b qwen3-1.7b r1-distill-1.5b" LARGE="qwen2.5-7b llama-3.1-8b"
mkdir -p "$OUT" "$made" "$CACHEIR_MODELS"

say() { echo "[$(($(date +%s) - began)) s] $*"; }

# Part $2 within $1 seconds, its output kept; the last lines are shown.
part() {
  limit=$1 name=$2
  shift 2
  timeout -k 3 "$limit" "$@" >"$made/$name.txt" 2>&1
  say "$name: exit status $?"
  tail -n 6 "$made/$name.txt" | cut -c1-220
}

models() {
  for name in "$@"; do
    [ -d "$CACHEIR_MODELS/$name" ] || python3 -c "import sys; from pathlib import Path
import random_models as made
write = made.write_rolled if sys.argv[2] in ('qwen2.5-7b', 'llama-3.1-8b') else made.write_model
write(Path(sys.argv[1]) / sys.argv[2], sys.argv[2])" "$CACHEIR_MODELS" "$name"
  done
}

# A copy of the packages whose QKV and O rings of the 7B and 8B shapes are the smaller ones that were timed first.
small_rings() {
  rm -rf "$SCRATCH/rings" && mkdir "$SCRATCH/rings" &&
    cp -r cacheir-core cacheir-cpu cacheir-importers cacheir-cuda benchmarks "$SCRATCH/rings"
  (
    cd "$SCRATCH/rings/cacheir-cuda" || exit 1
    sed -i 's/3584, 16, 14, 2, 1, 9)/3584, 16, 14, 2, 1, 7)/; s/4096, 16, 16, 2, 1, 8)/4096, 16, 16, 2, 1, 6)/' cpp/decode_chain.cu
    sed -i 's/16, 14, 1, 9, fit=2/16, 14, 1, 7, fit=2/; s/16, 16, 1, 8, fit=2/16, 16, 1, 6, fit=2/' src/cacheir_cuda/chain/tiles.py
    nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -cubin -o src/cacheir_cuda/cubins/decode_chain.sm_90a.cubin \
      cpp/decode_chain.cu && python3 cpp/write_manifest.py nvcc src/cacheir_cuda/cubins
  )
}

# One engine of vLLM beside ours: turn, how many take turns, model, batches, cells, measured until (seconds from now on).
beside() {
  BESIDE_TURN="$made/turn:$1:$2" BESIDE_BATCHES=$4 BESIDE_CELLS=$5 BESIDE_UNTIL=$((began + $6)) timeout -k 3 $((LAST + began - $(date +%s))) \
    python3 benchmarks/cuda/beside.py "$made/beside_vllm-in-process_$3.json" "$CACHEIR_MODELS/$3" vllm-in-process \
    env -u PYTHONPATH PYTHONPATH="$SCRATCH/vllm_site" VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CACHE_ROOT="$SCRATCH/vllm_cache" \
    python3 "$PACK/vllm_worker.py" "$CACHEIR_MODELS/$3" >"$made/beside_$3.txt" 2>"$made/beside_$3.err"
  say "$3 beside vLLM: exit status $?"
  cut -c1-170 "$made/beside_$3.txt" | tail -n 20
}

case ${1:-} in
1) # 300 s: batches, first tokens, stall, start; nothing else runs meanwhile
  models $SMALL
  for name in $SMALL; do
    part 70 "batch_run_$name" python3 benchmarks/cuda/batch_run.py "$made/batch_run_$name.json" --model \
      "$CACHEIR_MODELS/$name" throughput first_tokens
  done
  part 60 engine_run_host python3 benchmarks/cuda/engine_run.py "$made/engine_run_host.json" stall start
  ;;
2) # 330 s: first and further tokens of five shapes; 7B and 8B with the smaller rings too
  small_rings >"$made/rings_build.txt" 2>&1 &
  models $SMALL $LARGE
  for name in $SMALL; do part 45 "shape_$name" python3 benchmarks/cuda/shape_run.py "$made/shape_$name.json" $name first tokens; done
  for name in $LARGE; do part 45 "shape_$name" python3 benchmarks/cuda/shape_run.py "$made/shape_$name.json" $name tokens; done
  wait
  for name in $LARGE; do
    part 40 "rings_$name" env PYTHONPATH="$(echo "$PYTHONPATH" | sed "s,[^:]*,$SCRATCH/rings/&,g")" \
      python3 benchmarks/cuda/shape_run.py "$made/rings_$name.json" $name tokens
  done
  ;;
3) # 260 s: what is right or wrong, and no times: all parts beside each other
  models $SMALL
  part 200 companies python3 benchmarks/cuda/engine_run.py "$made/engine_run.json" companies bits &
  for name in $SMALL; do
    part 200 "repeats_$name" python3 benchmarks/cuda/repeats.py "$made/repeats_$name.json" "$CACHEIR_MODELS/$name" &
  done
  part 240 sanitize env OUT="$made" sh benchmarks/cuda/next_session.sh sanitize &
  part 200 adapters python3 benchmarks/cuda/untried.py "$made/untried.json" qwen3 &
  part 200 kit env CACHEIR_TEST_DEVICE=cuda OMP_NUM_THREADS=2 python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider \
    --import-mode=importlib cacheir-cuda/tests/test_conformance.py -k "Float16 or TritonKernels" &
  wait
  part 60 tune python3 -m cacheir tune "$CACHEIR_MODELS/qwen3-0.6b" --output "$made/tiles.json"
  ;;
4 | 5) # beside vLLM; 4: one prompt and batch 128, three models, 400 s; 5: batches of 8 and 32, 7B and 8B, 340 s
  LAST=$([ "$1" = 4 ] && echo 400 || echo 330)
  export VLLM_KV_GIB=5
  python3 "$PACK/unpack_vllm.py" "$PACK" "$SCRATCH/vllm_site" >"$made/unpack.txt" 2>&1 &
  models $SMALL
  wait
  say "unpacked, models made"
  if [ "$1" = 4 ]; then
    beside 0 3 qwen3-0.6b 128 "" 205 &
    beside 1 3 qwen3-1.7b 128 "" 290 &
    beside 2 3 r1-distill-1.5b 128 "" 372 &
  else
    models $LARGE
    beside 0 5 qwen2.5-7b "" 1x512x1,1x512x128 190 &
    beside 1 5 llama-3.1-8b "" 1x512x1,1x512x128 217 &
    beside 2 5 qwen3-0.6b 8,32 none 240 &
    beside 3 5 qwen3-1.7b 8,32 none 266 &
    beside 4 5 r1-distill-1.5b 8,32 none 295 &
  fi
  wait
  [ "$1" = 5 ] && part 40 untried_vllm env PYTHONPATH="$PYTHONPATH:$SCRATCH/vllm_site" CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1 \
    python3 benchmarks/cuda/untried.py "$made/untried_vllm.json" qwen3 \
    "kernel paged_attention_prefill=cuda.adapter.flash_attention_vllm_prefill" \
    "kernel paged_attention_decode=cuda.adapter.flash_attention_vllm_decode"
  ;;
*)
  sed -n '2,3p' "$0"
  exit 2
  ;;
esac
say "call $1 over"
tar czf "$OUT/call_$1.tgz" -C "$made" .
