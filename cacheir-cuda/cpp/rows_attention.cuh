// Attention of several rows over their pages: norm of q and k by head, rotation, append, products, merge.
//
// As attention.cuh, by row: a cluster of RANKS blocks serves one KV head of one row.  In a decode step every row is the
// newest token of a sequence of its own, so its key and value come from the row itself.  In a prompt (PROMPT) rows
// follow each other in a sequence: append_rows has put the keys and values of all of them into the pages, which are
// read after the wait.
#pragma once
#include "attention.cuh"
#include "rows_product.cuh"

struct RowsAttentionArguments {
  const float *qkv;        // [R][N * HEAD + 2 * K * HEAD]
  bf16 *out;               // [R][N * HEAD], tiled
  bf16 *pages;             // this layer's: [page][K, V][kv head][page token][HEAD]
  const int *page_table;   // [sequences][table_width]
  const int *positions;    // [R]
  const int *slots;        // [R]: where the row's key and value go, page * page_tokens + token; negative: to nobody's page
  const int *row_starts;   // [sequences + 1], or null where each row is a sequence
  const float *q_gain, *k_gain;  // [HEAD], read where q and k are normed by head
  const float *turns;      // [position][HEAD / 2][cos, sin]
  int sequences, page_tokens, table_width, spare_page;  // spare_page is nobody's
  int step;                // of a graph of several: positions and slots are those of its first
  float eps, scale;        // scale: of the scores, times log2(e)
};

struct Turned { float2 low, high; };  // dimensions 2 lane, 2 lane + 1 of a head, and 64 further on

// Dimensions of one head, normed and turned by a warp.
template <bool NORMED>
__device__ __forceinline__ Turned turned(Turned x, float4 turn, const float2 (&gain)[2], float eps) {
  if (NORMED) {
    const float squares = lane_sum<32>(x.low.x * x.low.x + x.low.y * x.low.y + x.high.x * x.high.x + x.high.y * x.high.y);
    const float scale = rsqrtf(squares * (1.f / HEAD) + eps);
    x.low.x *= scale * gain[0].x; x.low.y *= scale * gain[0].y; x.high.x *= scale * gain[1].x; x.high.y *= scale * gain[1].y;
  }
  return {make_float2(x.low.x * turn.x - x.high.x * turn.y, x.low.y * turn.z - x.high.y * turn.w),
          make_float2(x.high.x * turn.x + x.low.x * turn.y, x.high.y * turn.z + x.low.y * turn.w)};
}
// Where a row's key goes; the value goes kv_heads * page_tokens * HEAD further on.
__device__ __forceinline__ bf16 *slot_of(const RowsAttentionArguments &a, int row, int kv_head, int kv_heads) {
  const int slot = a.slots[row], later = a.positions[row] + a.step;
  int page = slot < 0 ? a.spare_page : slot / a.page_tokens, token = slot < 0 ? 0 : slot % a.page_tokens;
  if (a.step && slot >= 0) {
    page = a.page_table[(size_t)row * a.table_width + min(later / a.page_tokens, a.table_width - 1)];
    token = later % a.page_tokens;
  }
  return a.pages + (((size_t)page * 2 * kv_heads + kv_head) * a.page_tokens + token) * HEAD;
}

// Keys and values of a prompt's rows into their pages: a block for each row, a warp for each head of K and V.
template <int HEADS, int KV_HEADS, bool NORMED> __device__ __forceinline__ void append(const RowsAttentionArguments &a) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x, kv_head = warp % KV_HEADS;
  const bool is_key = warp < KV_HEADS;
  let_next_start();
  const float4 turn = *(const float4 *)(a.turns + ((size_t)a.positions[row] * (HEAD / 2) + 2 * lane) * 2);
  float2 gain[2] = {make_float2(1, 1), make_float2(1, 1)};
  if (NORMED) { gain[0] = *(const float2 *)(a.k_gain + 2 * lane); gain[1] = *(const float2 *)(a.k_gain + 64 + 2 * lane); }
  bf16 *to = slot_of(a, row, kv_head, KV_HEADS) + (is_key ? 0 : KV_HEADS * a.page_tokens * HEAD) + 2 * lane;
  const float *source = a.qkv + (size_t)row * (HEADS + 2 * KV_HEADS) * HEAD + (HEADS + warp) * HEAD + 2 * lane;
  wait_for_previous();
  Turned x = {load_pair(source), load_pair(source + 64)};
  if (is_key) x = turned<NORMED>(x, turn, gain, a.eps);
  *(u32 *)to = pack(x.low.x, x.low.y);
  *(u32 *)(to + 64) = pack(x.high.x, x.high.y);
}

template <int HEADS, int KV_HEADS, bool NORMED, int RANKS_OF_ROW, bool PROMPT>
__device__ __forceinline__ void rows_attention(const RowsAttentionArguments &a) {
  constexpr int PER = HEADS / KV_HEADS, CLUSTER = RANKS_OF_ROW, PARTS = CLUSTER * ATTENTION_WARPS, DIMS = HEAD / CLUSTER;
  static_assert(PER <= 8 && PER + 2 <= ATTENTION_WARPS && HEADS % KV_HEADS == 0 && DIMS >= 16, "heads");
  __shared__ __align__(16) bf16 query[2][PER][HEAD + 8];  // upper halves, rests
  __shared__ __align__(16) bf16 fresh[2][HEAD];           // the row's own key and value
  __shared__ __align__(16) float part[PARTS][PER * DIMS + 4];  // 4: neighbours in other banks
  __shared__ __align__(8) unsigned long long arrived;
  __shared__ __align__(8) float2 weight[PARTS][PER];      // largest score and sum of each part
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % CLUSTER, kv_head = blockIdx.x / CLUSTER % KV_HEADS, row = blockIdx.x / (CLUSTER * KV_HEADS);
  let_next_start();
  if (threadIdx.x == 0) barrier_init(shared_address(&arrived), 1);
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");  // whoever writes to others waits for it
  int sequence = row;
  if (a.row_starts) {
    sequence = 0;
    for (int i = 1; i < a.sequences; i++) sequence += a.row_starts[i] <= row;
  }
  const int *table = a.page_table + (size_t)sequence * a.table_width;
  const int place = warp * CLUSTER + rank, first_page = table[min(place * GROUP / a.page_tokens, a.table_width - 1)];
  const int position = a.positions[row] + a.step, groups = position / GROUP + 1, places = min(groups, PARTS);
  if (threadIdx.x == 0) expect_bytes(shared_address(&arrived), places * PER * (DIMS + 2) * 4);

  uint4 k[2][4], v[4][2];
  const int past_all = PROMPT ? position + 1 : position;  // tokens that lie in pages
  auto load = [&](int group, int page) {  // tokens from `past_all` on are zero
    const int first = group * GROUP, past = past_all - first;
    const bf16 *keys = a.pages + ((size_t)page * 2 * KV_HEADS + kv_head) * a.page_tokens * HEAD + first % a.page_tokens * HEAD;
    const bf16 *values = keys + KV_HEADS * a.page_tokens * HEAD;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int p = 0; p < 4; p++) {
        const int token = 8 * i + g;
        k[i][p] = token < past ? __ldcg((const uint4 *)(keys + token * HEAD + 32 * p + 8 * t)) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int token = 8 * (j >> 1) + 2 * t + (j & 1);
        v[j][h] = token < past ? __ldcg((const uint4 *)(values + token * HEAD + 64 * h + 8 * g)) : make_uint4(0, 0, 0, 0);
      }
  };
  if (!PROMPT && place < groups) load(place, first_page);
  for (int group = place + PARTS; group < groups; group += PARTS) {  // later ones come at least as far as L2
    const int token = group * GROUP + (lane & 15), page = table[min(group * GROUP / a.page_tokens, a.table_width - 1)];
    const bf16 *line = a.pages + (((size_t)page * 2 + (lane >> 4)) * KV_HEADS + kv_head) * a.page_tokens * HEAD
                     + token % a.page_tokens * HEAD;
    if (token < position) {
      asm volatile("prefetch.global.L2 [%0];" :: "l"(line));
      asm volatile("prefetch.global.L2 [%0];" :: "l"(line + 64));
    }
  }
  // Warps 0 to PER - 1 turn a query head each; the next one takes the row's key, the one after it the value.
  const bool is_query = warp < PER, is_key = warp == PER, owns = !PROMPT && rank == (position / GROUP) % CLUSTER;
  float4 turn = make_float4(1, 0, 1, 0);
  float2 gain[2] = {make_float2(1, 1), make_float2(1, 1)};
  if (is_query || is_key) {
    turn = *(const float4 *)(a.turns + ((size_t)position * (HEAD / 2) + 2 * lane) * 2);
    if (NORMED) {
      const float *gains = is_key ? a.k_gain : a.q_gain;
      gain[0] = *(const float2 *)(gains + 2 * lane);
      gain[1] = *(const float2 *)(gains + 64 + 2 * lane);
    }
  }
  const float *source = a.qkv + (size_t)row * (HEADS + 2 * KV_HEADS) * HEAD + 2 * lane
                      + (is_query ? kv_head * PER + warp : HEADS + (is_key ? 0 : KV_HEADS) + kv_head) * HEAD;
  bf16 *appended = nullptr;
  if (owns && warp >= PER && warp <= PER + 1)
    appended = slot_of(a, row, kv_head, KV_HEADS) + (is_key ? 0 : KV_HEADS * a.page_tokens * HEAD) + 2 * lane;
  wait_for_previous();

  if (PROMPT && place < groups) load(place, first_page);
  if (is_query || (owns && warp <= PER + 1)) {
    Turned x = {load_pair(source), load_pair(source + 64)};
    if (is_query || is_key) x = turned<NORMED>(x, turn, gain, a.eps);
    if (is_query) {
      x.low.x *= a.scale; x.low.y *= a.scale; x.high.x *= a.scale; x.high.y *= a.scale;
      const u32 l = pack(x.low.x, x.low.y), h = pack(x.high.x, x.high.y);
      *(u32 *)&query[0][warp][2 * lane] = l;
      *(u32 *)&query[0][warp][64 + 2 * lane] = h;
      *(u32 *)&query[1][warp][2 * lane] = pack(x.low.x - low_half(l), x.low.y - high_half(l));
      *(u32 *)&query[1][warp][64 + 2 * lane] = pack(x.high.x - low_half(h), x.high.y - high_half(h));
    } else {
      const u32 l = pack(x.low.x, x.low.y), h = pack(x.high.x, x.high.y);
      *(u32 *)&fresh[warp - PER][2 * lane] = l;
      *(u32 *)&fresh[warp - PER][64 + 2 * lane] = h;
      *(u32 *)appended = l;
      *(u32 *)(appended + 64) = h;
    }
  }
  __syncthreads();

  float most = -INFINITY, sum = 0, o[16][2] = {};
  auto attend = [&](int group, bool first) {
    // The row's own key and value are nowhere else yet.
    if (!PROMPT && group == groups - 1) put_own(k, v, fresh, position % GROUP, g, t);
    attend_group<PER>(query, k, v, group * GROUP, position, first, most, sum, o);
  };
  if (place < groups) attend(place, true);
  for (int group = place + PARTS; group < groups; group += PARTS) {
    load(group, table[min(group * GROUP / a.page_tokens, a.table_width - 1)]);
    attend(group, false);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (place < groups && g < PER) {
    // Lane t holds dimensions 16 t to 16 t + 15 and the same 64 further on.
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int dimension = 16 * t + 64 * h, owner = dimension / DIMS;
      const u32 there = in_block(shared_address(&part[place][g * DIMS + dimension % DIMS]), owner);
      const u32 barrier = in_block(shared_address(&arrived), owner);
#pragma unroll
      for (int e = 0; e < 2; e++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int first = 8 * h + 4 * j;
          store_there(there + (8 * e + 4 * j) * 4, barrier, o[first][e], o[first + 1][e], o[first + 2][e], o[first + 3][e]);
        }
      if (dimension % DIMS == 0) store_there(in_block(shared_address(&weight[place][g]), owner), barrier, most, sum);
    }
  }
  await_bytes(shared_address(&arrived));

  constexpr int OUTPUTS = PER * DIMS, FIT = ATTENTION_WARPS * 32 / OUTPUTS;
  constexpr int MERGERS = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1, AT_A_TIME = ATTENTION_WARPS * 32 / MERGERS;
  constexpr int EACH = PARTS / MERGERS;
#pragma unroll
  for (int begin = 0; begin < OUTPUTS; begin += AT_A_TIME) {
    const int which = begin + threadIdx.x / MERGERS, first = threadIdx.x % MERGERS;
    const int head = min(which / DIMS, PER - 1), at = which % DIMS;
    float top = -INFINITY, total = 0, value = 0, held[EACH];
    float2 w[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {  // reads all its parts at once: one latency, not one each
      const int place_of_part = first + i * MERGERS;
      w[i] = make_float2(-INFINITY, 0.f);
      held[i] = 0;
      if (place_of_part < places) { w[i] = weight[place_of_part][head]; held[i] = part[place_of_part][head * DIMS + at]; }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) top = fmaxf(top, w[i].x);
#pragma unroll
    for (int offset = MERGERS / 2; offset; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const float share = exp2f(w[i].x - top);
      total += share * w[i].y;
      value += share * held[i];
    }
    total = lane_sum<MERGERS>(total);
    value = lane_sum<MERGERS>(value);
    if (first == 0 && which < OUTPUTS)
      a.out[tiled(row, (kv_head * PER + head) * HEAD + rank * DIMS + at, HEADS * HEAD)] = __float2bfloat16(__fdividef(value, total));
  }
}
