// What all kernels of the decode chain share: how they wait for each other, and their loads and products.
//
// The chain is one CUDA graph of kernels joined by programmatic edges (programmatic dependent launch).  Every kernel
// lets its successor start at once, asks for its weights, and only then waits for the kernel before it: weights do not
// depend on activations, so memory stays busy while the chain of dependences goes on.
#pragma once
#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;
typedef unsigned u32;

constexpr int NO_TOKEN = -1;  // of a row whose logits are not all finite

// With -DTRACE thread 0 of every block notes the time at eight places of its kernel (benchmarks/cuda/trace_chain.py).
#ifdef TRACE
#define TRACE_FIELD unsigned long long *trace;
__device__ __forceinline__ void note_time(unsigned long long *trace, int place, u32 after = 0) {
  if (threadIdx.x) return;
  unsigned long long now;
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 0x7fc01234; @p st.global.u64 [%0], 0; }" :: "l"(trace), "r"(after) : "memory");
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now) :: "memory");
  trace[blockIdx.x * 8 + place] = now;
}
#define NOTE_TIME(...) note_time(a.trace, __VA_ARGS__)
#else
#define TRACE_FIELD
#define NOTE_TIME(...)
#endif

// With -DSTAMPED thread 0 of each block of several rows' kernels writes the time in ns: by KERNEL of a layer (0 QKV to 4 down), block
// and PLACE (0 begins, 1 has asked, 2 is behind the wait, 3 has its rows, 4 and 5 products and sums, 7 ends; rows_stamps.py).
#ifdef STAMPED
__device__ unsigned long long rows_stamps[5][256][8];
__device__ __forceinline__ void stamp(int kernel, int place) {
  if (threadIdx.x) return;
  asm volatile("{ .reg .u64 now; mov.u64 now, %globaltimer; st.global.u64 [%0], now; }"
               :: "l"(&rows_stamps[kernel][blockIdx.x][place]) : "memory");
}
#define STAMP(KERNEL, PLACE) stamp(KERNEL, PLACE)
#else
#define STAMP(KERNEL, PLACE) ((void)0)
#endif

// What a replay starts from.  A kernel reads it before it waits: it changes only in the last kernel of a graph, which
// the kernels of the next graph wait for.
struct State {
  int position;  // of the token that the first step of the graph feeds
  int produced;  // tokens that were written since the first graph of this run
  int token;     // the token that the run begins with
  int reserved;
};

__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Streamed weights must not push activations and KV pages out of the L2 cache.
__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint4 load_weight(const void *at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at), "l"(evict_first()) : "memory");
  return v;
}
// 16 bytes of weights to shared memory at `target`, for this thread alone (cp.async.wait_group).
__device__ __forceinline__ void copy_piece(u32 target, const void *at) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;"
               :: "r"(target), "l"(at), "l"(evict_first()) : "memory");
}
// Goes on once `word` is there.
__device__ __forceinline__ void await_load(u32 word) {
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0x7fc01235; @p nanosleep.u32 1; }" :: "r"(word) : "memory");
}
// Activations are read where their writer's stores lie: in L2, past this multiprocessor's own cache.
__device__ __forceinline__ uint4 load_activation(const void *at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_floats(const float *at) {
  const uint4 v = load_activation(at);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ float2 load_pair(const float *at) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ float load_float(const float *at) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
  return v;
}

// What a kernel of a step before has written, past this multiprocessor's own cache.
__device__ __forceinline__ int load_word(const int *at) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Asks for `bytes` from `source` in shared memory at `target`; `barrier` is over once they are there.
__device__ __forceinline__ void copy_to_shared(u32 target, const void *source, int bytes, u32 barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(target), "l"(source), "r"(bytes), "r"(barrier), "l"(evict_first()) : "memory");
}
__device__ __forceinline__ void await_phase(u32 barrier, u32 parity) {
  u32 over = 0;
  while (!over)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier) { await_phase(barrier, 0); }

// c += a * b of a 16 x 16 and a 16 x 8 fragment of bfloat16.
__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float low_half(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_half(u32 w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
  __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<u32 *>(&v);
}
// A float32 value travels as two bfloat16 values, itself rounded and the rest, so that products keep 16 bits of it.
__device__ __forceinline__ void store_split(bf16 *out, int index, int width, float value) {
  const bf16 upper = __float2bfloat16(value);
  out[index] = upper;
  out[width + index] = __float2bfloat16(value - __bfloat162float(upper));
}
template <int LANES> __device__ __forceinline__ float lane_sum(float v) {
#pragma unroll
  for (int offset = LANES / 2; offset; offset >>= 1) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}
