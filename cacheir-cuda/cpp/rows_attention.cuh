// Attention of several rows over their pages: norm of q and k by head, rotation, append, products, merge.
//
// SHARES blocks share the query heads of one KV head of a row, or as many clusters of RANKS blocks, which share its tokens.
// Groups of 16 tokens are dealt to the warps in turn.  A warp has PIECES pieces of 4 KB (a group's keys, or its values)
// under way in a ring of its own in shared memory.  Tokens are the rows of both products and query heads their columns, two
// to a head: its upper half and its rest.
//
// In a decode step every row is the newest token of a sequence of its own: its key and value come from the row itself, and
// the rings fill before the wait, since pages of past tokens do not depend on the kernels just before.  In a prompt (PROMPT)
// rows follow each other in a sequence: append_rows has put the keys and values of all of them into the pages, which are
// read after the wait.
// Where QKV leaves sums of QKV_PARTS parts of its columns (rows_parts.cuh), they are added, scaled and get the bias here.
#pragma once
#include "attention.cuh"
#include "rows_product.cuh"
#include "rows_turned.cuh"

struct RowsAttentionArguments {
  const float *qkv;        // [R][QKV_PARTS][N * HEAD + 2 * K * HEAD]
  bf16 *out;               // [R][N * HEAD], tiled
  bf16 *pages;             // this layer's: [page][K, V][kv head][page token][HEAD]
  const int *page_table;   // [sequences][table_width]
  const int *positions;    // [R]
  const int *slots;        // [R]: where a prompt's key and value go, page * page_tokens + token, negative: to nobody's page.
                           // Those of a decode step go where their position's page lies, negative: nowhere
  const int *row_starts;   // [sequences + 1], or null where each row is a sequence
  const float *q_gain, *k_gain;  // [HEAD], read where q and k are normed by head
  const float *turns;      // [position][HEAD / 2][cos, sin]
  int sequences, page_tokens, table_width, spare_page;  // spare_page is nobody's
  int step;                // of a graph of several: positions and slots are those of its first
  float eps, scale;        // scale: of the scores, times log2(e)
  const float *squares;    // [R][square_count], and
  const float *bias;       // [N * HEAD + 2 * K * HEAD] or null: those of QKV in parts
  int square_count, width; // a multiple of 4; columns of QKV
};

// Where the key of a prompt's row goes; the value goes kv_heads * page_tokens * HEAD further on.
__device__ __forceinline__ bf16 *slot_of(const RowsAttentionArguments &a, int row, int kv_head, int kv_heads) {
  const int slot = a.slots[row];
  const int page = slot < 0 ? a.spare_page : slot / a.page_tokens, token = slot < 0 ? 0 : slot % a.page_tokens;
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

__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_transposed_matrices(u32 (&to)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ u32 transposed_matrix(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ float power_of_two(float x) {  // 0 for -infinity
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// AHEAD pieces beyond the ring come as far as L2 at the beginning.  Of at most ALONE * WARPS groups the first block of a
// cluster takes care alone: a short row needs no exchange between blocks.
template <int HEADS, int KV_HEADS, bool NORMED, int SHARES, int RANKS_OF_ROW, int WARPS, int PIECES, int AHEAD, int ALONE, bool PROMPT,
          int QKV_PARTS = 1>
__device__ __forceinline__ void rows_attention(const RowsAttentionArguments &a) {
  constexpr int ALL = HEADS / KV_HEADS, PER = ALL / SHARES, TILES = (PER + 3) / 4, THREADS = 32 * WARPS, PIECE = GROUP * HEAD * 2;
  constexpr int PAIRS = PER * HEAD / 2;  // of dimensions, of all heads
  constexpr int MERGERS = WARPS > 8 && THREADS >= 2 * PAIRS ? 2 : 1, AT_A_TIME = THREADS / MERGERS;
  constexpr int HEAD_STRIDE = HEAD + 8, DIMS = HEAD / RANKS_OF_ROW, EACH = WARPS / MERGERS;  // 8: neighbours in other banks
  static_assert(PER <= 8 && PER + 2 <= WARPS && HEADS % KV_HEADS == 0 && ALL % SHARES == 0 && DIMS >= 16 && WARPS % MERGERS == 0, "heads");
  static_assert(PER * HEAD_STRIDE * 4 + 128 <= PIECES * PIECE, "a warp's part lies over its ring");
  extern __shared__ __align__(128) char held[];                    // [WARPS][PIECES][PIECE]
  __shared__ __align__(16) bf16 query[8 * TILES][HEAD + 8];        // of each head its upper half and its rest
  __shared__ __align__(16) bf16 fresh[2][HEAD];                    // the row's own key and value
  __shared__ __align__(8) float2 weight[WARPS][PER];               // largest score and sum of each part
  __shared__ __align__(16) float4 gathered[RANKS_OF_ROW > 1 ? RANKS_OF_ROW : 1][RANKS_OF_ROW > 1 ? PER * DIMS / 2 : 1];
  __shared__ __align__(8) unsigned long long arrived;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % RANKS_OF_ROW, share = blockIdx.x / RANKS_OF_ROW % SHARES;
  const int kv_head = blockIdx.x / (RANKS_OF_ROW * SHARES) % KV_HEADS, row = blockIdx.x / (RANKS_OF_ROW * SHARES * KV_HEADS);
  const int first_head = kv_head * ALL + share * PER;
  STAMP(1, 0);
  let_next_start();

  // 1. Keys and values of past tokens, and all else that is known already.  What does not depend on each other is read at once.
  int sequence = row;
  if (PROMPT && a.row_starts) {
    sequence = 0;
    for (int i = 1; i < a.sequences; i++) sequence += a.row_starts[i] <= row;
  }
  const int *table = a.page_table + (size_t)sequence * a.table_width;
  const int page_groups = (u32)a.page_tokens / GROUP;
  auto place_of = [&](int group) {  // where a group's keys lie, in pieces from the first page on
    const int number = page_groups == 1 ? group : (u32)group / page_groups, page = table[min(number, a.table_width - 1)];
    return (page * (2 * KV_HEADS) + kv_head) * page_groups + group - number * page_groups;
  };
  int places = place_of(warp * RANKS_OF_ROW + rank + lane * (WARPS * RANKS_OF_ROW));  // of the warp's group `lane`
  const int places_alone = ALONE ? place_of(warp + lane * WARPS) : 0;
  const int position = a.positions[row] + a.step, groups = (u32)position / GROUP + 1;
  const bool alone = RANKS_OF_ROW == 1 || groups <= ALONE * WARPS;
  const int ranks = alone ? 1 : RANKS_OF_ROW;
  if (RANKS_OF_ROW > 1 && rank >= ranks) return;
  if (ALONE && alone) places = places_alone;
  const int past_all = PROMPT ? position + 1 : position;
  const int place = warp * ranks + rank, turns = WARPS * ranks, behind = max(groups - 1 - place, -1);
  const int own_groups = behind < 0 ? 0 : (alone ? (u32)behind / WARPS : (u32)behind / (WARPS * RANKS_OF_ROW)) + 1;
  const int pieces = 2 * own_groups, values_after = KV_HEADS * page_groups;
  const u32 ring = shared_address(held) + warp * (PIECES * PIECE);
  auto piece_at = [&](int piece) {  // pieces are asked for in order
    const int which = piece >> 1;
    if (which && which % 32 == 0 && !(piece & 1)) places = place_of(place + (which + lane) * turns);
    return (const char *)a.pages + (size_t)(__shfl_sync(~0u, places, which % 32) + (piece & 1) * values_after) * PIECE;
  };
  const u32 lane_target = (lane >> 4) * 256 + (((lane & 15) ^ (lane >> 4)) << 4);
  auto ask = [&](int piece) {  // the 16 bytes c of token i go to place c ^ (i % 8); tokens from `past_all` on are zero
    if (piece < pieces) {
      const char *from = piece_at(piece) + lane * 16;
      const int past = past_all - (place + (piece >> 1) * turns) * GROUP - (lane >> 4);
      const u32 to = ring + piece % PIECES * PIECE + lane_target;
#pragma unroll
      for (int i = 0; i < GROUP / 2; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"((to ^ ((2 * i & 6) << 4)) + i * 512), "l"(from + i * 512), "r"(2 * i < past ? 16 : 0) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  auto begin = [&] {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) ask(piece);
#pragma unroll
    for (int piece = PIECES; piece < PIECES + AHEAD; piece++) {  // the next ones come as far as L2
      const char *from = piece_at(piece);
      if (piece < pieces && lane == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(PIECE) : "memory");
    }
  };
  if (!PROMPT) begin();
  if (RANKS_OF_ROW > 1 && ranks > 1) {
    if (threadIdx.x == 0) {
      barrier_init(shared_address(&arrived), 1);
      expect_bytes(shared_address(&arrived), min(groups, ranks) * PER * DIMS / 2 * 16);
    }
    arrive_at_cluster();
  }
  // Warps 0 to PER - 1 turn a query head each; the next one takes the row's key, the one after it the value.
  const bool is_query = warp < PER, is_key = warp == PER, owns = !PROMPT && rank == ((groups - 1) & (ranks - 1));
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
  if (2 * PER + warp < 8 * TILES) *(uint2 *)&query[2 * PER + warp][4 * lane] = make_uint2(0, 0);
  constexpr int OUTPUTS = (HEADS + 2 * KV_HEADS) * HEAD;
  const int output = (is_query ? first_head + warp : HEADS + (is_key ? 0 : KV_HEADS) + kv_head) * HEAD + 2 * lane;
  const float *source = a.qkv + (size_t)row * QKV_PARTS * OUTPUTS + output, *squares = a.squares + (size_t)row * a.square_count;
  Turned bias = {make_float2(0, 0), make_float2(0, 0)};
  if constexpr (QKV_PARTS > 1)
    if (a.bias && warp <= PER + 1) bias = {*(const float2 *)(a.bias + output), *(const float2 *)(a.bias + output + 64)};
  bf16 *appended = nullptr;
  if (owns && share == 0 && warp >= PER && warp <= PER + 1)
    appended = a.pages + ((size_t)(place_of(groups - 1) + (is_key ? 0 : values_after)) * GROUP + position % GROUP) * HEAD + 2 * lane;

  // 2. The row itself.
  STAMP(1, 1);
  wait_for_previous();
  STAMP(1, 2);
  if (PROMPT) begin();
  if (is_query || (owns && warp <= PER + 1)) {
    Turned x;
    if constexpr (QKV_PARTS == 1) x = {load_pair(source), load_pair(source + 64)};
    else x = load_parts<QKV_PARTS, OUTPUTS>(source, squares, a.square_count, 1.f / a.width, a.eps, bias);
    int slot = -1;
    if (appended) slot = load_word(a.slots + row);  // the step before may have been the row's last
    if (is_query || is_key) x = turned<NORMED>(x, turn, gain, a.eps);
    if (is_query) {
      x.low.x *= a.scale; x.low.y *= a.scale; x.high.x *= a.scale; x.high.y *= a.scale;
      const u32 l = pack(x.low.x, x.low.y), h = pack(x.high.x, x.high.y);
      *(u32 *)&query[2 * warp][2 * lane] = l;
      *(u32 *)&query[2 * warp][64 + 2 * lane] = h;
      *(u32 *)&query[2 * warp + 1][2 * lane] = pack(x.low.x - low_half(l), x.low.y - high_half(l));
      *(u32 *)&query[2 * warp + 1][64 + 2 * lane] = pack(x.high.x - low_half(h), x.high.y - high_half(h));
    } else {
      const u32 l = pack(x.low.x, x.low.y), h = pack(x.high.x, x.high.y);
      *(u32 *)&fresh[warp - PER][2 * lane] = l;
      *(u32 *)&fresh[warp - PER][64 + 2 * lane] = h;
      if (slot >= 0) {
        *(u32 *)appended = l;
        *(u32 *)(appended + 64) = h;
      }
    }
  }
  __syncthreads();
  STAMP(1, 3);

  // 3. Group by group.  Lane (g, t) has tokens g and g + 8 of heads t and t + 4, and of the result dimensions g + 8 i.
  float most[TILES], sum[TILES], o[TILES][8][4] = {};
#pragma unroll
  for (int n = 0; n < TILES; n++) { most[n] = -INFINITY; sum[n] = 0; }
  const u32 query_at = shared_address(&query[lane & 7][(lane >> 3) * 8]);
  const u32 key_row = (lane & 15) * 256, key_chunk = lane >> 4;                            // matrices: tokens 0-7, 8-15; then k 8-15
  const u32 value_row = ((lane & 7) + (lane >> 4) * 8) * 256, value_chunk = lane >> 3 & 1;  // dimensions 0-7, 8-15; then tokens 8-15
  const u32 turn_of_row = lane & 7;
  auto arrive_and_own = [&](int piece, int group) {  // the oldest piece is there, with the row's own key or value in it
    asm volatile("cp.async.wait_group %0;" :: "n"(PIECES - 1) : "memory");
    if (!PROMPT && group == groups - 1) {
      __syncwarp();
      const int own = position % GROUP;
      if (lane < 16)
        *(uint4 *)(held + (warp * PIECES + piece % PIECES) * PIECE + own * 256 + ((lane ^ (own & 7)) << 4)) =
            *(const uint4 *)&fresh[piece & 1][lane * 8];
    }
    __syncwarp();
  };
#pragma unroll 1
  for (int i = 0; i < own_groups; i++) {
    const int group = place + i * turns;
    arrive_and_own(2 * i, group);
    float score[TILES][2][4] = {};
    const u32 keys = ring + 2 * i % PIECES * PIECE + key_row;
#pragma unroll
    for (int p = 0; p < 4; p += 2) {
      u32 k[4][4], q[TILES][2][4];
#pragma unroll
      for (int c = 0; c < 4; c++) load_matrices(k[c], keys + ((4 * p + 2 * c + key_chunk ^ turn_of_row) << 4));
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) load_matrices(q[n][c], query_at + n * 8 * (HEAD + 8) * 2 + (p + c) * 64);
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int n = 0; n < TILES; n++) {
          multiply_add(score[n][0], k[2 * c][0], k[2 * c][1], k[2 * c][2], k[2 * c][3], q[n][c][0], q[n][c][1]);
          multiply_add(score[n][1], k[2 * c + 1][0], k[2 * c + 1][1], k[2 * c + 1][2], k[2 * c + 1][3], q[n][c][2], q[n][c][3]);
        }
    }
    __syncwarp();
    ask(2 * i + PIECES);
    u32 weights[TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      float s[2], largest = most[n];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        s[e] = (score[n][0][2 * e] + score[n][1][2 * e]) + (score[n][0][2 * e + 1] + score[n][1][2 * e + 1]);
        if (group * GROUP + g + 8 * e > position) s[e] = -INFINITY;
        largest = fmaxf(largest, s[e]);
      }
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
      const float fade = power_of_two(most[n] - largest);  // largest is finite: each group has a token
      most[n] = largest;
      sum[n] *= fade;
      if (i)
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
          for (int e = 0; e < 4; e++) o[n][m][e] *= fade;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float x = power_of_two(s[e] - largest), upper = __bfloat162float(__float2bfloat16(x));
        sum[n] += x;
        weights[n][e] = transposed_matrix(pack(upper, x - upper));
      }
    }
    arrive_and_own(2 * i + 1, group);
    const u32 values = ring + (2 * i + 1) % PIECES * PIECE + value_row;
#pragma unroll
    for (int m = 0; m < 8; m += 4) {
      u32 v[4][4];
#pragma unroll
      for (int c = 0; c < 4; c++) load_transposed_matrices(v[c], values + ((2 * (m + c) + value_chunk ^ turn_of_row) << 4));
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int n = 0; n < TILES; n++) multiply_add(o[n][m + c], v[c][0], v[c][1], v[c][2], v[c][3], weights[n][0], weights[n][1]);
    }
    __syncwarp();
    ask(2 * i + 1 + PIECES);
  }

  // 4. The parts of all warps.
  STAMP(1, 4);
  auto part_of = [&](int of_warp) {
    return (float *)(held + of_warp * (PIECES * PIECE) + (MERGERS > 1 ? of_warp % MERGERS * (128 / MERGERS) : 0));
  };
  if (own_groups) {
    float *part = part_of(warp);
#pragma unroll
    for (int n = 0; n < TILES; n++)
      if (4 * n + t < PER) {
#pragma unroll
        for (int m = 0; m < 8; m++) {
          part[(4 * n + t) * HEAD_STRIDE + 16 * m + g] = o[n][m][0] + o[n][m][1];
          part[(4 * n + t) * HEAD_STRIDE + 16 * m + 8 + g] = o[n][m][2] + o[n][m][3];
        }
      }
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) sum[n] += __shfl_xor_sync(~0u, sum[n], offset);
      if (g == 0 && 4 * n + t < PER) weight[warp][4 * n + t] = make_float2(most[n], sum[n]);
    }
  }
  __syncthreads();
  const int parts = min(WARPS, groups <= rank ? 0 : (groups - rank - 1) / (alone ? 1 : RANKS_OF_ROW) + 1);  // warps that have one
  if (RANKS_OF_ROW > 1 && ranks > 1) wait_for_cluster();
  const u32 barrier = shared_address(&arrived);
#pragma unroll
  for (int begin = 0; begin < PAIRS; begin += AT_A_TIME) {
    if (begin + warp * (32 / MERGERS) >= PAIRS) break;
    const int which = begin + threadIdx.x / MERGERS, first = threadIdx.x % MERGERS;
    const int head = min(which / (HEAD / 2), PER - 1), at = which % (HEAD / 2) * 2;
    float2 w[EACH], taken[EACH], value = make_float2(0, 0);
    float top = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {  // reads all its parts at once: one latency, not one each
      const int of_warp = first + i * MERGERS;
      w[i] = make_float2(-INFINITY, 0.f);
      taken[i] = make_float2(0.f, 0.f);
      if (of_warp < parts) {
        w[i] = weight[of_warp][head];
        taken[i] = *(const float2 *)(part_of(of_warp) + head * HEAD_STRIDE + at);
      }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) top = fmaxf(top, w[i].x);
#pragma unroll
    for (int offset = MERGERS / 2; offset; offset >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const float share = power_of_two(w[i].x - top);
      total += share * w[i].y;
      value.x += share * taken[i].x;
      value.y += share * taken[i].y;
    }
    total = lane_sum<MERGERS>(total);
    value.x = lane_sum<MERGERS>(value.x);
    value.y = lane_sum<MERGERS>(value.y);
    if (first == 0 && which < PAIRS) {
      if (RANKS_OF_ROW == 1 || ranks == 1)
        *(u32 *)&a.out[tiled(row, (first_head + head) * HEAD + at, HEADS * HEAD)] =
            pack(__fdividef(value.x, total), __fdividef(value.y, total));
      else if (parts)
        store_there(in_block(shared_address(&gathered[rank][head * (DIMS / 2) + at % DIMS / 2]), at / DIMS),
                    in_block(barrier, at / DIMS), value.x, value.y, top, total);
    }
  }
  STAMP(1, 7);
  if (RANKS_OF_ROW == 1 || ranks == 1) return;

  // 5. The parts of all blocks: each finishes some dimensions.
  await_bytes(barrier);
#pragma unroll
  for (int which = threadIdx.x; which < PER * DIMS / 2; which += THREADS) {
    float4 taken[RANKS_OF_ROW];
    float top = -INFINITY, total = 0;
    float2 value = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < RANKS_OF_ROW; i++) {
      taken[i] = i < groups ? gathered[i][which] : make_float4(0, 0, -INFINITY, 0);
      top = fmaxf(top, taken[i].z);
    }
#pragma unroll
    for (int i = 0; i < RANKS_OF_ROW; i++) {
      const float share = power_of_two(taken[i].z - top);
      total += share * taken[i].w;
      value.x += share * taken[i].x;
      value.y += share * taken[i].y;
    }
    const int head = which / (DIMS / 2), at = which % (DIMS / 2) * 2;
    *(u32 *)&a.out[tiled(row, (first_head + head) * HEAD + rank * DIMS + at, HEADS * HEAD)] =
        pack(__fdividef(value.x, total), __fdividef(value.y, total));
  }
}
