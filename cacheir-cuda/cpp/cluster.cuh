// What the blocks of a cluster send each other: stores into another block's shared memory, which count the bytes that came.
#pragma once
#include "device.cuh"

// The place in the block `rank` of the cluster that `address` is in this one.
__device__ __forceinline__ u32 in_block(u32 address, int rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Stores into another block; its `barrier` counts the bytes that have come.
__device__ __forceinline__ void store_there(u32 address, u32 barrier, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
               :: "r"(address), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}
__device__ __forceinline__ void store_there(u32 address, u32 barrier, float a, float b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];"
               :: "r"(address), "f"(a), "f"(b), "r"(barrier) : "memory");
}
// So many bytes will come to this block's `barrier`, and then they are there.
__device__ __forceinline__ void expect_bytes(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await_bytes(u32 barrier) {
  u32 over = 0;
  while (!over)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(barrier) : "memory");
}

// Between the two every block of the cluster has begun, and has its barriers ready: whoever writes to others waits for it.
// Relaxed, since barrier_init's fence has ordered what others must see: a release would wait for every copy under way
// (MEMBAR), that is until the whole ring has come.
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
