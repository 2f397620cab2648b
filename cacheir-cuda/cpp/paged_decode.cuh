// Attention of one query a row over pages (Ainslie et al. 2023, arXiv:2305.13245), any number of keys a row.
//
// A block has the query heads of one KV head, up to GROUP of them, so that keys and values are read once for all.  Its
// threads are streams of LANES lanes, each lane with eight dimensions; a stream takes every so many-th key and keeps a
// running softmax of its own.  Streams are merged at the end.  With one part (batched) the block writes the result; with
// several (reduced) each writes its sums, and `paged_reduce` merges those (flash decoding, Dao et al. 2023).
#pragma once
#include "plain_types.cuh"

constexpr int PAGED_THREADS = 128;
constexpr float LOG2_E = 1.4426950408889634f;

struct PagedArguments {
  const float *q;         // [rows, heads, dim]
  const void *pages;      // [page, K or V, kv_head, page_tokens, dim]
  const int *page_table;  // [rows, table_width]
  const int *positions;   // [rows], of each query
  float *out;             // [rows, heads, dim]
  float *parts;           // [rows, heads, splits, dim + 2]: the sum, the largest score, the weight of all
  int heads, kv_heads, page_tokens, dim, table_width, window, sinks, splits;
  float scale, softcap;
};

// Weights are powers of two: scores are counted in units of log 2.
struct Softmax {
  float most, total;
};

// By how much what was summed before `next` shrinks, when `next` is the largest; nothing was, where it is -inf.
__device__ __forceinline__ float shrink(float before, float next) { return before == -INFINITY ? 0.f : exp2f(before - next); }

template <typename T, int LANES, int GROUP> __device__ __forceinline__ void paged_decode(const PagedArguments &a) {
  constexpr int WARPS = PAGED_THREADS / 32, STREAMS = PAGED_THREADS / LANES, AT_ONCE = sizeof(T) == 4 || GROUP == 8 ? 2 : 4;
  __shared__ float mixed[WARPS][GROUP][LANES * 8];
  __shared__ Softmax weights[WARPS][GROUP];
  const int group = a.heads / a.kv_heads, chunks = (group + GROUP - 1) / GROUP;
  const int row = blockIdx.x, kv_head = blockIdx.y / chunks, member = blockIdx.y % chunks * GROUP, part = blockIdx.z;
  const int members = min(GROUP, group - member);
  const size_t head = (size_t)row * a.heads + kv_head * group + member;
  const int lane = threadIdx.x % LANES, stream = threadIdx.x / LANES, at = lane * 8;
  const bool holds = at < a.dim;  // `dim` is a multiple of 8

  // Keys are counted without those between the sinks and the window, whose pages may be freed.
  const int last = a.positions[row], begin = a.window > 0 ? max(0, last + 1 - a.window) : 0, near = min(a.sinks, begin);
  const int skip = begin - near, keys = last + 1 - skip;
  const int share = (keys + a.splits - 1) / a.splits, start = part * share, stop = min(start + share, keys);

  float query[GROUP][8] = {}, sum[GROUP][8] = {};
  Softmax own[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; g++) {
    own[g] = {-INFINITY, 0.f};
    if (g < members && holds)
#pragma unroll
      for (int i = 0; i < 8; i++) query[g][i] = a.q[(head + g) * a.dim + at + i] * a.scale;
  }
  const size_t further = (size_t)a.kv_heads * a.page_tokens * a.dim;  // from keys to values
  for (int first = start; first < stop; first += STREAMS * AT_ONCE) {  // all streams go round alike: lanes talk
    Eight<T> key[AT_ONCE], value[AT_ONCE];
    bool seen[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      const int index = first + n * STREAMS + stream;
      seen[n] = index < stop;
      key[n].zero();
      value[n].zero();
      if (seen[n] && holds) {
        const int token = index < near ? index : index + skip;
        const int page = a.page_table[(size_t)row * a.table_width + token / a.page_tokens];
        const T *place = (const T *)a.pages +
                         (((size_t)page * 2 * a.kv_heads + kv_head) * a.page_tokens + token % a.page_tokens) * a.dim + at;
        key[n].load(place);
        value[n].load(place + further);
      }
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      float k[8], v[8];
      key[n].floats(k);
      value[n].floats(v);
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        float score = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) score += query[g][i] * k[i];
        score = warp_sum<LANES>(score);
        if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
        if (!seen[n]) continue;  // alike in all lanes of a stream
        score *= LOG2_E;
        const float most = fmaxf(own[g].most, score), kept = shrink(own[g].most, most), weight = exp2f(score - most);
        own[g] = {most, own[g].total * kept + weight};
#pragma unroll
        for (int i = 0; i < 8; i++) sum[g][i] = sum[g][i] * kept + weight * v[i];
      }
    }
  }
#pragma unroll
  for (int g = 0; g < GROUP; g++) {
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) {
      const float most = __shfl_xor_sync(~0u, own[g].most, offset), total = __shfl_xor_sync(~0u, own[g].total, offset);
      const float both = fmaxf(own[g].most, most), mine = shrink(own[g].most, both), theirs = shrink(most, both);
      own[g] = {both, own[g].total * mine + total * theirs};
#pragma unroll
      for (int i = 0; i < 8; i++) sum[g][i] = sum[g][i] * mine + __shfl_xor_sync(~0u, sum[g][i], offset) * theirs;
    }
    if (threadIdx.x % 32 < LANES) {
#pragma unroll
      for (int i = 0; i < 8; i++) mixed[threadIdx.x / 32][g][at + i] = sum[g][i];
      if (lane == 0) weights[threadIdx.x / 32][g] = own[g];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < members * a.dim; i += PAGED_THREADS) {
    const int g = i / a.dim, d = i % a.dim;
    float most = -INFINITY, total = 0, made = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) most = fmaxf(most, weights[warp][g].most);
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
      const float kept = shrink(weights[warp][g].most, most);
      total += weights[warp][g].total * kept;
      made += mixed[warp][g][d] * kept;
    }
    if (a.splits == 1) {
      a.out[(head + g) * a.dim + d] = made / total;
    } else {
      float *place = a.parts + ((head + g) * a.splits + part) * (a.dim + 2);
      place[d] = made;
      if (d == 0) {
        place[a.dim] = most;
        place[a.dim + 1] = total;
      }
    }
  }
}

// A block a row's query head: the parts of its keys, merged.
__device__ __forceinline__ void reduce_parts(const PagedArguments &a) {
  const float *parts = a.parts + (size_t)blockIdx.x * a.splits * (a.dim + 2);
  float most = -INFINITY;
#pragma unroll 8
  for (int part = 0; part < a.splits; part++) most = fmaxf(most, parts[(size_t)part * (a.dim + 2) + a.dim]);
  for (int d = threadIdx.x; d < a.dim; d += PAGED_THREADS) {
    float total = 0, made = 0;
#pragma unroll 8
    for (int part = 0; part < a.splits; part++) {
      const float *place = parts + (size_t)part * (a.dim + 2);
      const float kept = shrink(place[a.dim], most);
      total += place[a.dim + 1] * kept;
      made += place[d] * kept;
    }
    a.out[(size_t)blockIdx.x * a.dim + d] = made / total;
  }
}
