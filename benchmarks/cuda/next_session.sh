#!/bin/sh
# What is tried and timed on a GPU, in calls of under ten minutes: next_session.sh PART, results into $OUT. What has run: docs/cuda.md.
#
#   first     the kit on the GPU (sampler, heads, KV codes) and each kernel's GB/s and TFLOP/s: run it first
#   rows      Qwen3-0.6B: float16, KV int8 and fp8, forced kernels, --batch-invariant's bits and cost, warm-up, memory
#   models    Qwen3-1.7B and R1-Distill-1.5B: prompts and batches; then the decode chain's parity with 50 repeats
#   tune      tiles of the three models' products, and the batches again with the table
#   sanitize  compute-sanitizer's memcheck and racecheck: a tiny model's steps, the CUDA C++ chains of four shapes, kernels of single ops
#   vllm      needs vLLM unpacked and VLLM_PYTHON: whole answers in turn, batch 128 too; adapters over its FlashAttention
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src:benchmarks/cuda"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONDONTWRITEBYTECODE=1
OUT=${OUT:-/tmp}
PLACE=${PLACE:-/tmp/cacheir-models}

# A checkpoint of the shape $1 with random weights, once.
model() {
  [ -d "$PLACE/$1" ] || python3 -c "import sys; from pathlib import Path; from random_models import write_model; \
write_model(Path(sys.argv[1]) / sys.argv[2], sys.argv[2])" "$PLACE" "$1"
  echo "$PLACE/$1"
}

kit() { # name, files and options of pytest
  name=$1
  shift
  CACHEIR_TEST_DEVICE=cuda OMP_NUM_THREADS=2 timeout 200 python3 -m pytest -q -c /dev/null --rootdir . \
    -p no:cacheprovider --import-mode=importlib -n 8 "$@" >"$OUT/$name.txt" 2>&1
  tail -n 15 "$OUT/$name.txt"
}

CHAIN_KERNELS=
for each in rows_ product_ stream_ attention_ head_h advance_row; do
  CHAIN_KERNELS="$CHAIN_KERNELS --kernel-name kns=$each"
done

OP_KERNELS=
for each in linear_ gated_ qkv_ paged_ rms_norm swiglu; do
  OP_KERNELS="$OP_KERNELS --kernel-name kns=$each"
done

# The command behind tool $1 of compute-sanitizer, as part $2, of kernels that FILTER lets through.
checked() {
  tool=$1 part=$2
  shift 2
  timeout -k 2 "${SECONDS_EACH:-90}" compute-sanitizer --tool "$tool" --error-exitcode 9 ${FILTER:-} "$@" >"$OUT/sanitized_${tool}_$part.txt" 2>&1
  echo "$tool $part: exit status $?" >>"$OUT/sanitized_${tool}_$part.txt"
}

# The tests of single ops under tool $1, of kernels that FILTER lets through, in three processes beside each other.
checked_ops() (
  mkdir -p "$OUT/ops_$1" && rm -f "$OUT/ops_$1"/*.txt
  for group in 1:attention_over_pages:and:bf16 2:attention_over_pages:and:not:bf16 3:not:attention_over_pages; do
    (OUT="$OUT/ops_$1" checked "$1" "${group%%:*}" python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider \
      --import-mode=importlib cacheir-cuda/tests/test_compiled_ops.py -k "$(echo "${group#*:}" | tr : ' ')") &
  done
  wait
  errors=$(sed -n 's/.*SUMMARY: .*[ (]\([0-9]*\) errors\{0,1\}.*/\1/p' "$OUT/ops_$1"/*.txt | awk '{n += $1} END {print n + 0}')
  status=$(sed -n 's/.*: exit status \([0-9]*\)$/\1/p' "$OUT/ops_$1"/*.txt | awk '
    $1 == 124 {cut = 1} $1 == 9 {told = 9} $1 != 0 && $1 != 9 {bad = $1} END {print cut ? 124 : bad ? bad : told + 0}')
  {
    echo "SUMMARY: of three processes $errors errors"
    sed 's/: exit status/ ended with/' "$OUT/ops_$1"/*.txt
    echo "$1 ops: exit status $status"
  } >"$OUT/sanitized_$1_ops.txt"
)

# Ours beside vLLM on the model $1.
beside() {
  python3 -m cacheir benchmark "$(model "$1")" --backend cuda --against vllm --samples 20 --peer-python \
    "vllm=$VLLM_PYTHON" --output "$OUT/against_vllm_$1.json" 2>"$OUT/against_vllm_$1.txt"
  tail -n 25 "$OUT/against_vllm_$1.txt"
}

case ${1:-} in
first)
  kit tests_float32 cacheir-cuda/tests/test_conformance.py -k "Float32 or Float16"
  kit tests_kernels cacheir-cuda/tests/test_conformance.py -k "TritonKernels or TorchKernels"
  timeout 150 python3 -m cacheir benchmark --suite cuda-kernels --output "$OUT/cuda_kernels.json" >/dev/null
  ;;
rows)
  folder=$(model qwen3-0.6b)
  timeout 400 python3 benchmarks/cuda/untried.py "$OUT/untried.json" "$folder"
  CACHEIR_TRITON_MATMUL=1 timeout 90 python3 benchmarks/cuda/untried.py "$OUT/untried_matmul.json" "$folder" \
    default "kernel linear=cuda.triton.matmul"
  ;;
models)
  for name in qwen3-1.7b r1-distill-1.5b; do
    timeout 200 python3 benchmarks/cuda/batch_run.py "$OUT/batch_run_$name.json" --model "$(model $name)" 2>&1 | cut -c1-300
  done
  for name in qwen3-1.7b r1-distill-1.5b; do sh benchmarks/cuda/decode_chain.sh $name 2>&1 | tail -n 12; done
  ;;
tune)
  for name in qwen3-0.6b qwen3-1.7b r1-distill-1.5b; do
    timeout 150 python3 -m cacheir tune "$(model $name)" --output "$OUT/tiles.json" 2>"$OUT/tune_$name.txt"
    tail -n 4 "$OUT/tune_$name.txt"
  done
  CACHEIR_CUDA_TUNED="$OUT/tiles.json" python3 benchmarks/cuda/batch_run.py "$OUT/batch_run_tuned.json" --model \
    "$(model qwen3-0.6b)" first_tokens throughput 2>&1 | cut -c1-300
  ;;
sanitize)
  for part in launches graphs; do
    for tool in memcheck racecheck; do checked $tool $part python3 benchmarks/cuda/sanitized.py $part & done
  done
  for part in qwen3-0.6b qwen3-1.7b r1-distill-1.5b llama-3.1-8b; do
    checked memcheck $part python3 benchmarks/cuda/sanitized.py $part &
    # racecheck follows each access to shared memory: it gets our kernels alone, of one layer, one after the other.
    FILTER=$CHAIN_KERNELS checked racecheck $part python3 benchmarks/cuda/sanitized_chain.py $part &
  done
  export CACHEIR_TEST_DEVICE=cuda
  checked_ops memcheck &
  FILTER=$OP_KERNELS checked_ops racecheck &
  wait
  for found in "$OUT"/sanitized_*.txt; do tail -n 1 "$found"; done
  ;;
vllm)
  for name in ${MODELS:-qwen3-0.6b}; do beside "$name"; done
  CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1 "$VLLM_PYTHON" benchmarks/cuda/untried.py "$OUT/untried_vllm.json" \
    "$(model qwen3-0.6b)" "kernel paged_attention_prefill=cuda.adapter.flash_attention_vllm_prefill" \
    "kernel paged_attention_decode=cuda.adapter.flash_attention_vllm_decode"
  ;;
*)
  sed -n '2,9p' "$0"
  exit 2
  ;;
esac
