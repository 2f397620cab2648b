// The token of a step: that of the largest logit which the head's blocks found.
#pragma once
#include "device.cuh"

// Of `blocks` candidates, by a block of WARPS warps; `values` and `ids` are in shared memory.  Told to thread 0 alone:
// NO_TOKEN where a logit is not finite or there is none.
template <int WARPS>
__device__ __forceinline__ int token_of_largest(const float *bests, const int *tokens, int blocks, float (&values)[WARPS],
                                                int (&ids)[WARPS]) {
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
  float best = -INFINITY;
  int id = 0x7fffffff;
  for (int i = thread; i < blocks; i += WARPS * 32) {
    const float v = __ldcg(bests + i);
    const int other = __ldcg(tokens + i);
    if (v > best || (v == best && other < id)) { best = v; id = other; }
  }
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const int other = __shfl_xor_sync(~0u, id, offset);
    if (v > best || (v == best && other < id)) { best = v; id = other; }
  }
  if (lane == 0) { values[warp] = best; ids[warp] = id; }
  __syncthreads();
  if (thread) return id;
  for (int i = 1; i < WARPS; i++)
    if (values[i] > best || (values[i] == best && ids[i] < id)) { best = values[i]; id = ids[i]; }
  return best == -INFINITY ? NO_TOKEN : id;
}
