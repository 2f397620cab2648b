#!/bin/sh
# The calls that measure what report.md asks for: calls.sh vllm|times|answers|kernels|adapters|sanitizer|suite, and those
# that look for more: steps (engine_steps.py) and search (rows_search.py, with the cubin that SEARCHED names), one after the
# other while the machine is warm. plan.md says what each shows, plan_times.py how long it takes. Everything goes to $OUT as
# one archive per call; each part has a limit of its own. CUBINS is an archive of the compiled kernels (tar, any
# compression), PACK what vLLM is unpacked from, ADAPTERS what pack_adapters.py made, VLLM_MODELS which models are measured
# beside vLLM, VLLM_STAGES what of the small ones, ONLY the parts that are wanted (beginnings of their names).
set -u
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="cacheir-core/src:cacheir-cpu/src:cacheir-importers/src:cacheir-cuda/src:benchmarks/cuda"
export CACHEIR_PLUGIN_MODULES="cacheir_cpu.plugin,cacheir_importers.plugin,cacheir_cuda.plugin" PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
SCRATCH=${TMPDIR:-/tmp}/cacheir-calls
OUT=${OUT:-$SCRATCH/out} PACK=${PACK:-.vllm_pack} began=$(date +%s) call=${1:-}
made=$SCRATCH/made_$call
SMALL="qwen3-0.6b qwen3-1.7b r1-distill-1.5b" LARGE="qwen2.5-7b llama-3.1-8b"
mkdir -p "$OUT" && rm -rf "$made" && mkdir -p "$made" || exit 1

say() { echo "[$(($(date +%s) - began)) s] $*"; }

# 40 GB of models lie in memory where that much may lie there.
room=$(df -BG --output=avail /dev/shm | tail -n 1 | tr -dc 0-9)
if [ "${room:-0}" -ge 45 ]; then place=/dev/shm/models; else place=$SCRATCH/models; fi
[ -d "$SCRATCH/models" ] && place=$SCRATCH/models
export CACHEIR_MODELS=$place
mkdir -p "$place"
if [ -n "${CUBINS:-}" ]; then
  rm -rf cacheir-cuda/src/cacheir_cuda/cubins
  python3 -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall('cacheir-cuda/src/cacheir_cuda', filter='data')" "$CUBINS" || exit 1
fi
say "room in memory ${room} GB, models in $place, $(ls cacheir-cuda/src/cacheir_cuda/cubins | wc -l) compiled files"

# Whether the part $1 is wanted: all are, or those whose names begin with a word of ONLY.
named() {
  [ -n "${ONLY:-}" ] || return 0
  for each in $ONLY; do case $1 in "$each"*) return 0 ;; esac done
  return 1
}

# Part $2 within $1 seconds, its output kept; the last lines are shown.
part() {
  part_limit=$1 part_name=$2
  shift 2
  named "$part_name" || return 0
  timeout -k 3 "$part_limit" "$@" >"$made/$part_name.txt" 2>&1
  say "$part_name: exit status $?; $(tail -n 1 "$made/$part_name.txt" | cut -c1-250)"
}

# The named models one after the other, each whole or not at all.
models() {
  missing=
  for each in "$@"; do [ -d "$CACHEIR_MODELS/$each" ] || missing="$missing $each"; done
  [ -z "$missing" ] || python3 -c "
import sys
from pathlib import Path
import random_models
for name in sys.argv[2:]:
    folder, part = (Path(sys.argv[1]) / each for each in (name, 'part.' + name))
    if not folder.exists():
        large = name in ('qwen2.5-7b', 'llama-3.1-8b')
        (random_models.write_rolled if large else random_models.write_model)(part, name)
        part.rename(folder)
" "$CACHEIR_MODELS" $missing >>"$made/models.txt" 2>&1 || say "models: $(tail -n 1 "$made/models.txt")"
}

all_models() {
  models $SMALL &
  for name in $LARGE; do models "$name" & done
}

# Until the file or folder $2 is there, at most $1 seconds after the beginning.
until_there() { until [ -e "$2" ] || [ $(($(date +%s) - began)) -gt "$1" ]; do sleep 0.3; done; }

# One engine of vLLM beside ours: number, model, memory of vLLM's KV in GiB, further options of vLLM (JSON), stages.
# No round begins after LAST_ROUND, no busy time after LAST_BUSY, and all is over at LAST, in seconds since the beginning.
beside() {
  until_there 120 "$SCRATCH/vllm_site/unpacked" && until_there 120 "$CACHEIR_MODELS/$2"
  BESIDE_TURN="$made/turn:$1:$count" BESIDE_STAGES=$5 BESIDE_READY=$((began + 200)) BESIDE_UNTIL=$((began + ${LAST_ROUND:-475})) \
    BESIDE_LAST=$((began + ${LAST_BUSY:-530})) OMP_NUM_THREADS=4 timeout -k 3 $((${LAST:-550} + began - $(date +%s))) \
    python3 benchmarks/cuda/beside.py "$made/beside_vllm-in-process_$2.json" "$CACHEIR_MODELS/$2" vllm-in-process \
    env -u PYTHONPATH -u OMP_NUM_THREADS PYTHONPATH="$SCRATCH/vllm_site" VLLM_ENABLE_V1_MULTIPROCESSING=0 \
    VLLM_CACHE_ROOT="$SCRATCH/vllm_cache" VLLM_KV_GIB="$3" VLLM_OPTIONS="$4" \
    python3 "$PACK/vllm_worker.py" "$CACHEIR_MODELS/$2" >"$made/beside_$2.txt" 2>"$made/beside_$2.err"
  say "$2 beside vLLM: exit status $?"
  touch "$made/turn/ready.$1" "$made/turn/left.$1"
  cut -c1-150 "$made/beside_$2.txt" | tail -n 18
}

# What there is so far, so that a call that is cut leaves it.
archive() { tar czf "$OUT/call_$call.tgz.part" -C "$made" . && mv "$OUT/call_$call.tgz.part" "$OUT/call_$call.tgz"; }

case $call in
vllm) # 550 s for all: the engines of vLLM start together; then one model after the other, round by round in turn
  [ -e "$SCRATCH/vllm_site/unpacked" ] ||
    (python3 "$PACK/unpack_vllm.py" "$PACK" "$SCRATCH/vllm_site" >"$made/unpack.txt" 2>&1 && touch "$SCRATCH/vllm_site/unpacked") &
  wanted=${VLLM_MODELS:-$SMALL $LARGE}
  count=$(echo "$wanted" | wc -w)
  for name in $wanted; do models "$name" & done
  (
    until_there 120 "$SCRATCH/vllm_site/unpacked"
    part 85 untried_vllm env PYTHONPATH="$PYTHONPATH:$SCRATCH/vllm_site" CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1 OMP_NUM_THREADS=2 \
      python3 benchmarks/cuda/untried.py "$made/untried_vllm.json" llama \
      "kernel paged_attention_prefill=cuda.adapter.flash_attention_vllm_prefill" \
      "kernel paged_attention_decode=cuda.adapter.flash_attention_vllm_decode"
  ) &
  mkdir -p "$made/turn"
  sizes='"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]}, "max_num_seqs": 256'
  number=0
  for name in $wanted; do
    case $SMALL in
    *$name*)
      memory=5 options="{$sizes}" stages=${VLLM_STAGES:-singles;128x128x128;8x128x128,32x128x128;busy1;busy;judged}
      [ "$name" = r1-distill-1.5b ] && memory=2 # fewer KV heads
      ;;
    *) memory=1 options="{$sizes, \"max_num_batched_tokens\": 4096}" stages="1x512x1,1x512x128;;;busy1;" ;;
    esac
    beside $number "$name" $memory "$options" "$stages" &
    number=$((number + 1))
  done
  for at in 100 200 300 400; do
    (until_there $at "$made/over" && [ ! -e "$made/over" ] && free -g | sed -n 2p && archive) &
  done
  while [ $number -gt 0 ]; do
    number=$((number - 1))
    until_there 560 "$made/turn/left.$number"
  done
  touch "$made/over" && wait
  ;;
times) # 100 s, 25 more where the models are to be made: first and further tokens and batches of five shapes, opened together, measured one after the other
  all_models
  mkdir -p "$made/turn"
  number=0
  for name in $SMALL $LARGE; do
    wanted="first:16,512,2048 tokens:512"
    case $SMALL in *$name*) wanted="$wanted throughput:8,32" ;; esac
    (
      until_there 60 "$CACHEIR_MODELS/$name"
      part $((132 + began - $(date +%s))) "shape_$name" env SHAPE_TURN="$made/turn:$number:5" SHAPE_READY=$((began + 80)) \
        OMP_NUM_THREADS=4 python3 benchmarks/cuda/shape_run.py "$made/shape_$name.json" "$name" $wanted
      touch "$made/turn/ready.$number" "$made/turn/left.$number"
      grep -h "first token at\|further token at\|: batch" "$made/shape_$name.txt" | cut -c1-100
    ) &
    number=$((number + 1))
  done
  wait
  ;;
answers) # 110 s, nothing of it a time: companies and bits through the engine, repeats and parity of three models
  export OMP_NUM_THREADS=2
  part 110 bits python3 benchmarks/cuda/engine_run.py "$made/engine_run_bits.json" bits &
  part 110 companies python3 benchmarks/cuda/engine_run.py "$made/engine_run.json" companies &
  for name in $SMALL; do
    part 110 "chain_$name" python3 benchmarks/cuda/decode_chain.py "$made/decode_chain_$name.json" "$name" repeats parity &
  done
  models $SMALL
  for name in $SMALL; do
    part $((110 + began - $(date +%s))) "repeats_$name" python3 benchmarks/cuda/repeats.py "$made/repeats_$name.json" "$CACHEIR_MODELS/$name" &
  done
  wait
  ;;
kernels) # 105 s, nothing of it a time: kernels of several rows beside float32, every forced kernel, the kit's kernels
  export OMP_NUM_THREADS=2
  for name in $SMALL; do
    part 60 "rows_chain_$name" python3 benchmarks/cuda/rows_chain.py \
      cacheir-cuda/src/cacheir_cuda/cubins/rows_chain.sm_90a.cubin "$name" ends step products attention prompt &
  done
  part 105 untried python3 benchmarks/cuda/untried.py "$made/untried.json" llama &
  models qwen3-0.6b
  part 100 untried_0.6b python3 benchmarks/cuda/untried.py "$made/untried_qwen3-0.6b.json" "$CACHEIR_MODELS/qwen3-0.6b" \
    "dtype float16" default invariant "kv int8" "kv fp8" &
  part 60 untried_matmul env CACHEIR_TRITON_MATMUL=1 python3 benchmarks/cuda/untried.py "$made/untried_matmul.json" llama \
    "kernel linear=cuda.triton.matmul" &
  part 105 kit env CACHEIR_TEST_DEVICE=cuda python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider -n 9 \
    --import-mode=importlib cacheir-cuda/tests/test_conformance.py -k "Float16 or Kernels" &
  wait
  ;;
adapters) # 75 s, 110 at most: FlashInfer's and FlashAttention's kernels forced, each apart, and then, alone, their GB/s and TFLOP/s
  site=$SCRATCH/adapters_site
  [ -e "$site/unpacked" ] || (mkdir -p "$site" && python3 -c "import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='tar')" "${ADAPTERS:-.adapters_pack/adapters.tar.xz}" "$site" && touch "$site/unpacked")
  say "unpacked: $(ls "$site" | tr '\n' ' ')"
  export PYTHONPATH="$PYTHONPATH:$site" FLASHINFER_CUDA_ARCH_LIST=9.0a FLASHINFER_WORKSPACE_BASE="$SCRATCH" FLASHINFER_DISABLE_JIT=1
  export PATH="$PATH:/usr/local/cuda/bin"
  (
    part 40 libraries python3 -c "
import torch, flashinfer, flash_attn, tvm_ffi
from cacheir_cuda.adapters import libraries
print([library.check() for library in (libraries.FLASHINFER, libraries.FLASH_ATTENTION)])
for module in flashinfer.jit.env.FLASHINFER_AOT_DIR.glob('*/*.so'):
    print(module.stem, tvm_ffi.load_module(str(module)))
print('both are there, beside torch', torch.__version__)"
    cat "$made/libraries.txt"
  ) &
  for each in paged_attention_prefill=cuda.adapter.flash_attention_prefill paged_attention_prefill=cuda.adapter.flashinfer_prefill \
    paged_attention_decode=cuda.adapter.flashinfer_batch_decode paged_attention_decode=cuda.adapter.flashinfer_single_decode; do
    part 70 "untried_${each#*adapter.}" env OMP_NUM_THREADS=2 python3 benchmarks/cuda/untried.py \
      "$made/part_${each#*adapter.}.json" llama "kernel $each" &
  done
  wait
  python3 -c "import json, sys
from pathlib import Path
rows = {name: row for part in sorted(Path(sys.argv[1]).glob('part_*.json')) for name, row in json.loads(part.read_text()).items()}
Path(sys.argv[1], 'untried_adapters.json').write_text(json.dumps(rows, indent=1) + '\n')" "$made"
  rm -f "$made"/part_*.json
  part 40 suite python3 -m cacheir benchmark --suite cuda-kernels --output "$made/cuda_kernels_adapters.json" --set \
    kernel=cuda.adapter.flash_attention_prefill,cuda.adapter.flashinfer_prefill,cuda.adapter.flashinfer_batch_decode,cuda.adapter.flashinfer_single_decode
  cat "$made/suite.txt"
  ;;
sanitizer) # 115 s: compute-sanitizer on steps of a tiny model, the chains of four shapes, kernels of single ops
  part 215 sanitize env OUT="$made" SECONDS_EACH=205 sh benchmarks/cuda/next_session.sh sanitize
  cat "$made"/sanitized_*.txt | grep "exit status"
  ;;
steps) # 70 s alone, 8 more where the model is to be made: a step of R1 at 32 rows by the engine, by its graphs, by the search's
  models r1-distill-1.5b
  part 110 engine_steps python3 benchmarks/cuda/engine_steps.py "$made/engine_steps.json" r1-distill-1.5b 5
  cut -c1-400 "$made/engine_steps.txt" | tail -n 14
  ;;
search) # 195 s at most, alone: R1's kernels of 17 to 32 rows (the seconds are for the search, 20 more for its last stage)
  part 196 search python3 benchmarks/cuda/search_again.py "${SEARCHED:-build/cuda/rows_searched.sm_90a.cubin}" \
    "$made/rows_search.jsonl" "${SEARCH_SECONDS:-170}"
  cut -c1-420 "$made/search.txt" | tail -n 14
  ;;
suite) # 100 s alone on the machine: each kernel's GB/s and TFLOP/s, vLLM's attention too where it is unpacked; then tune
  [ -e "$SCRATCH/vllm_site/unpacked" ] && export PYTHONPATH="$PYTHONPATH:$SCRATCH/vllm_site" CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1
  part 60 suite python3 -m cacheir benchmark --suite cuda-kernels --set seconds=40 --output "$made/cuda_kernels.json"
  models qwen3-0.6b
  part 40 tune python3 -m cacheir tune "$CACHEIR_MODELS/qwen3-0.6b" --seconds 15 --output "$made/tiles.json"
  ;;
*)
  sed -n '2,7p' "$0"
  exit 2
  ;;
esac
say "call $call over"
archive
