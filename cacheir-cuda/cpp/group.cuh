// Products of a whole warpgroup (wgmma), 64 outputs by 32 rows: weights as fragments in registers, rows in shared memory.
#pragma once
#include "cluster.cuh"

// Sums of 64 outputs by 32 rows += four warps' fragments of 16 outputs by 16 columns, times 16 columns of 32 rows in shared memory.
// Asynchronous: neither the fragments nor the sums may be touched until await_products.
__device__ __forceinline__ void group_multiply_add(float (&d)[16], const uint4 &a, unsigned long long rows, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;"
      " wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      " {%16,%17,%18,%19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(rows), "r"(adds));
}
// What a product takes of the rows from `address` in shared memory on: 16 columns of them, 8 rows by 8 columns together in 128
// bytes, the next 8 columns behind them, the next 8 rows `stride` bytes further on.
__device__ __forceinline__ unsigned long long rows_described(u32 address, int stride) {
  return ((unsigned long long)(stride / 16) << 32) | ((unsigned long long)(128 / 16) << 16) | ((address & 0x3ffff) >> 4);
}
// Registers that products are about to read are as they should be.
__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last PENDING committed groups of products are over.
template <int PENDING> __device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// What others sent is there: the phase of `barrier` with this parity is over.
__device__ __forceinline__ void await_sent(u32 barrier, u32 parity) {
  u32 over = 0;
  while (!over)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
}

// Where element k of a row lies among rows of `width` that such products read: 8 rows by 8 elements are together.
__device__ __forceinline__ size_t grouped(int row, int k, int width) {
  return ((size_t)(row >> 3) * (width / 8) + k / 8) * 64 + (row & 7) * 8 + k % 8;
}
// A fragment of 16 outputs by 16 columns: lane i gives the address of 16 bytes, of output i % 16, and from lane 16 on of the second
// eight columns.
__device__ __forceinline__ uint4 load_fragment(u32 at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
