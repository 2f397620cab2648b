// Attention of one row over its pages: norm of q and k by head, rotation, append, products, merge.
//
// A cluster of 8 blocks serves one KV head.  Groups of 16 tokens are dealt to its 64 warps in turn, keys and values
// of past tokens lie in registers before the wait.  All query heads of the KV head are one operand of the tensor
// cores' product: rows 0 to 7 are the upper halves of up to 8 heads, rows 8 to 15 the rests.  Every warp writes its
// part of the result (not yet divided) into the shared memory of the block that finishes these dimensions; that block
// counts the bytes that come.
#pragma once
#include "cluster.cuh"

constexpr int HEAD = 128, RANKS = 8, ATTENTION_WARPS = 8, PLACES = RANKS * ATTENTION_WARPS, GROUP = 16, SHARE = HEAD / RANKS;

struct AttentionArguments {
  const float *qkv;           // [N * HEAD + 2 * K * HEAD]
  bf16 *out;                  // [2][N * HEAD]
  bf16 *pages;                // this layer's: [page][K, V][kv head][page token][HEAD]
  const int *page_table;
  const float *q_gain, *k_gain;  // [HEAD], read where q and k are normed by head
  const float *turns;         // [position][HEAD / 2][cos, sin]
  const State *state;
  const int *stopped;         // whether the row's answer is over: its key and value are kept nowhere
  int step, page_tokens, table_width;
  float eps, scale;           // scale: of the scores, times log2(e)
  TRACE_FIELD
};

// Takes 16 tokens, from `first_token` on, into the softmax of PER heads: scores in powers of two, `first` for the first group.
template <int PER>
__device__ __forceinline__ void attend_group(
    const bf16 (&query)[2][PER][HEAD + 8], const uint4 (&k)[2][4], const uint4 (&v)[4][2], int first_token, int position,
    bool first, float &most, float &sum, float (&o)[16][2]) {
  const int lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  float score[2][2][4] = {};
#pragma unroll
  for (int p = 0; p < 4; p++) {
    uint4 q = make_uint4(0, 0, 0, 0), r = make_uint4(0, 0, 0, 0);
    if (g < PER) { q = *(const uint4 *)&query[0][g][32 * p + 8 * t]; r = *(const uint4 *)&query[1][g][32 * p + 8 * t]; }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      multiply_add(score[i][0], q.x, r.x, q.y, r.y, k[i][p].x, k[i][p].y);
      multiply_add(score[i][1], q.z, r.z, q.w, r.w, k[i][p].z, k[i][p].w);
    }
  }
  float s[2][2], largest = most;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      s[i][e] = (score[i][0][e] + score[i][1][e]) + (score[i][0][e + 2] + score[i][1][e + 2]);
      if (first_token + 8 * i + 2 * t + e > position) s[i][e] = -INFINITY;
      largest = fmaxf(largest, s[i][e]);
    }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));  // finite: each group has a token
  const float fade = first ? 0.f : exp2f(most - largest);
  most = largest;
  sum *= fade;
  u32 p[2][2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float x = exp2f(s[i][0] - most), y = exp2f(s[i][1] - most);
    sum += x + y;
    p[i][0] = pack(x, y);
    p[i][1] = pack(x - low_half(p[i][0]), y - high_half(p[i][0]));
  }
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const int h = j >> 3, word = (j & 7) >> 1, half = j & 1 ? 0x7632 : 0x5410;
    auto of = [&](int token) { const uint4 &u = v[token][h]; return word == 0 ? u.x : word == 1 ? u.y : word == 2 ? u.z : u.w; };
    float c[4] = {};
    multiply_add(c, p[0][0], p[0][1], p[1][0], p[1][1], __byte_perm(of(0), of(1), half), __byte_perm(of(2), of(3), half));
    o[j][0] = first ? c[0] + c[2] : o[j][0] * fade + (c[0] + c[2]);
    o[j][1] = first ? c[1] + c[3] : o[j][1] * fade + (c[1] + c[3]);
  }
}

// Puts the key and the value of the row itself, ``fresh``, into its group's fragments at the place ``own``.
__device__ __forceinline__ void put_own(uint4 (&k)[2][4], uint4 (&v)[4][2], const bf16 (&fresh)[2][HEAD], int own, int g, int t) {
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int p = 0; p < 4; p++)
      if (8 * i + g == own) k[i][p] = *(const uint4 *)&fresh[0][32 * p + 8 * t];
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (8 * (j >> 1) + 2 * t + (j & 1) == own) v[j][h] = *(const uint4 *)&fresh[1][64 * h + 8 * g];
}

template <int HEADS, int KV_HEADS, bool NORMED> __device__ __forceinline__ void attention(const AttentionArguments &a) {
  constexpr int PER = HEADS / KV_HEADS;  // query heads of one KV head
  static_assert(PER + 1 <= ATTENTION_WARPS && HEADS % KV_HEADS == 0, "heads");
  constexpr int VALUE_WARP = PER + 1 < ATTENTION_WARPS ? PER + 1 : 0;  // appends the new value, after its query if it has one
  __shared__ __align__(16) bf16 query[2][PER][HEAD + 8];  // upper halves, rests
  __shared__ __align__(16) bf16 fresh[2][HEAD];           // the new token's key and value
  __shared__ __align__(16) float part[PLACES][PER * SHARE + 4];  // 4: neighbours in other banks
  __shared__ __align__(8) unsigned long long arrived;
  __shared__ __align__(8) float2 weight[PLACES][PER];     // largest score and sum of each part
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % RANKS, kv_head = blockIdx.x / RANKS;
  NOTE_TIME(0);
  let_next_start();
  if (threadIdx.x == 0) barrier_init(shared_address(&arrived), 1);
  arrive_at_cluster();
  const int place = warp * RANKS + rank, first_page = a.page_table[min(place * GROUP / a.page_tokens, a.table_width - 1)];
  const int position = a.state->position + a.step, groups = position / GROUP + 1;
  const int places = min(groups, PLACES);
  if (threadIdx.x == 0) expect_bytes(shared_address(&arrived), places * PER * (SHARE + 2) * 4);

  uint4 k[2][4], v[4][2];
  auto place_of = [&](int page, int token, int which) {
    return a.pages + (((size_t)page * 2 + which) * KV_HEADS + kv_head) * a.page_tokens * HEAD + token % a.page_tokens * HEAD;
  };
  auto page_of = [&](int token, int which) { return place_of(a.page_table[token / a.page_tokens], token, which); };
  auto load = [&](int group, int page) {  // tokens from `position` on are zero
    const int first = group * GROUP, past = position - first;
    const bf16 *keys = place_of(page, first, 0), *values = place_of(page, first, 1);
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
  if (place < groups) load(place, first_page);
  for (int group = place + PLACES; group < groups; group += PLACES) {  // later ones come at least as far as L2
    const int token = group * GROUP + (lane & 15);
    const bf16 *line = page_of(group * GROUP, lane >> 4) + (lane & 15) * HEAD;
    if (token < position) {
      asm volatile("prefetch.global.L2 [%0];" :: "l"(line));
      asm volatile("prefetch.global.L2 [%0];" :: "l"(line + 64));
    }
  }
  // Warps 0 to PER - 1 turn a query head each, the next one the new key.
  const bool is_query = warp < PER, is_key = warp == PER, owns = rank == (position / GROUP) % RANKS;
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
  const float *source = a.qkv + (is_query ? kv_head * PER + warp : HEADS + kv_head) * HEAD + 2 * lane;
  const float *value_source = a.qkv + (HEADS + KV_HEADS + kv_head) * HEAD + 2 * lane;
  bf16 *const appended = is_key || warp == VALUE_WARP ? page_of(position, is_key ? 0 : 1) + 2 * lane : nullptr;
  NOTE_TIME(1);
  wait_for_previous();
  NOTE_TIME(2);

  int stopped = 0;  // read behind what is needed first, and looked at last
  auto append = [&](bf16 *kept, float2 low, float2 high) {
    const u32 l = pack(low.x, low.y), h = pack(high.x, high.y);
    *(u32 *)&kept[2 * lane] = l;
    *(u32 *)&kept[64 + 2 * lane] = h;
    if (!stopped) {
      *(u32 *)appended = l;
      *(u32 *)(appended + 64) = h;
    }
  };
  if (owns && warp == VALUE_WARP) {
    const float2 low = load_pair(value_source), high = load_pair(value_source + 64);
    stopped = load_word(a.stopped);
    append(fresh[1], low, high);
  }
  if (is_query || (owns && is_key)) {
    float2 low = load_pair(source), high = load_pair(source + 64);
    if (is_key) stopped = load_word(a.stopped);
    if (NORMED) {
      const float squares = lane_sum<32>(low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y);
      const float scale = rsqrtf(squares * (1.f / HEAD) + a.eps);
      low.x *= scale * gain[0].x; low.y *= scale * gain[0].y; high.x *= scale * gain[1].x; high.y *= scale * gain[1].y;
    }
    const float2 first = low;
    low = make_float2(low.x * turn.x - high.x * turn.y, low.y * turn.z - high.y * turn.w);
    high = make_float2(high.x * turn.x + first.x * turn.y, high.y * turn.z + first.y * turn.w);
    if (is_query) {
      low.x *= a.scale; low.y *= a.scale; high.x *= a.scale; high.y *= a.scale;
      const u32 l = pack(low.x, low.y), h = pack(high.x, high.y);
      *(u32 *)&query[0][warp][2 * lane] = l;
      *(u32 *)&query[0][warp][64 + 2 * lane] = h;
      *(u32 *)&query[1][warp][2 * lane] = pack(low.x - low_half(l), low.y - high_half(l));
      *(u32 *)&query[1][warp][64 + 2 * lane] = pack(high.x - low_half(h), high.y - high_half(h));
    } else {
      append(fresh[0], low, high);
    }
  }
  __syncthreads();
  NOTE_TIME(3);

  float most = -INFINITY, sum = 0, o[16][2] = {};
  auto attend = [&](int group, bool first) {
    // The new token's key and value are nowhere else yet.
    if (group == groups - 1) put_own(k, v, fresh, position % GROUP, g, t);
    attend_group<PER>(query, k, v, group * GROUP, position, first, most, sum, o);
  };
  if (place < groups) attend(place, true);
  for (int group = place + PLACES; group < groups; group += PLACES) {
    load(group, a.page_table[group * GROUP / a.page_tokens]);
    attend(group, false);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  NOTE_TIME(4, __float_as_uint(o[15][1]));
  wait_for_cluster();
  if (place < groups && g < PER) {
    // Lane t holds dimensions 16 t to 16 t + 15 and the same 64 further on: those of blocks t and t + 4.
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 there = in_block(shared_address(&part[place][g * SHARE]), t + 4 * h);
      const u32 barrier = in_block(shared_address(&arrived), t + 4 * h);
#pragma unroll
      for (int e = 0; e < 2; e++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int first = 8 * h + 4 * j;
          store_there(there + (8 * e + 4 * j) * 4, barrier, o[first][e], o[first + 1][e], o[first + 2][e], o[first + 3][e]);
        }
      store_there(in_block(shared_address(&weight[place][g]), t + 4 * h), barrier, most, sum);
    }
  }
  await_bytes(shared_address(&arrived));
  NOTE_TIME(6);

  constexpr int FIT = ATTENTION_WARPS * 32 / (PER * SHARE), MERGERS = FIT >= 16 ? 16 : FIT >= 8 ? 8 : FIT >= 4 ? 4 : 2;
  const int which = threadIdx.x / MERGERS, first = threadIdx.x % MERGERS, head = min(which / SHARE, PER - 1), at = which % SHARE;
  constexpr int EACH = PLACES / MERGERS, AT_ONCE = EACH < 16 ? EACH : 16;
  float top = -INFINITY, total = 0, value = 0;
#pragma unroll
  for (int round = 0; round < EACH; round += AT_ONCE) {  // reads all its parts at once: one latency, not one each
    float2 w[AT_ONCE];
    float v[AT_ONCE], highest = top;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const int place_of_part = first + (round + i) * MERGERS;
      w[i] = make_float2(-INFINITY, 0.f);
      v[i] = 0;
      if (place_of_part < places) { w[i] = weight[place_of_part][head]; v[i] = part[place_of_part][head * SHARE + at]; }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) highest = fmaxf(highest, w[i].x);
#pragma unroll
    for (int offset = MERGERS / 2; offset; offset >>= 1) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, offset));
    const float fade = exp2f(top - highest);  // the first place is always there, so the highest is finite
    top = highest;
    total *= fade;
    value *= fade;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const float share = exp2f(w[i].x - top);
      total += share * w[i].y;
      value += share * v[i];
    }
  }
  total = lane_sum<MERGERS>(total);
  value = lane_sum<MERGERS>(value);
  if (first == 0 && which < PER * SHARE)
    store_split(a.out, (kv_head * PER + head) * HEAD + rank * SHARE + at, HEADS * HEAD, __fdividef(value, total));
  NOTE_TIME(5);
}
