// Gate and up times up to 32 rows by products of a whole warpgroup: a block of few registers and little shared memory.
//
// rows_stream.cuh holds the rows in the registers of a multiprocessor, so its blocks begin where those of the kernel before end.
// Here they lie in shared memory, where the tensor cores read them (wgmma), and a cluster of SPLIT blocks shares the columns, so
// that a block has a part of them.  A block is one warpgroup.  Each of its warps has a tile of the packed matrix, whose weights come
// through a ring of its own, PIECES pieces of 4 KB, and from there as fragments: the first operand of a product in registers.  The
// blocks of a cluster send each other their sums; each finishes some of the rows.
#pragma once
#include "group.cuh"
#include "rows_stream.cuh"

// The grid has as many blocks as let every cluster have the same number of turns of four tiles (outputs / 8 of them in all).
// GROUPED: so that such a product comes next.
template <int K, int SPLIT, int PIECES, bool GROUPED> __device__ __forceinline__ void rows_group(const RowsProductArguments &a) {
  constexpr int R = 32, THREADS = 128, STEPS = K / 32 / SPLIT, AT_ONCE = 4, TURN = STEPS / AT_ONCE, PIECE = AT_ONCE * 1024;
  constexpr int OWN = 4 / SPLIT, ROWS_BYTES = 4 * STEPS * 512;  // eighths of the rows that a block finishes, and all of its columns
  static_assert(K % (32 * SPLIT * AT_ONCE) == 0 && (SPLIT == 2 || SPLIT == 4), "whole pieces");
  extern __shared__ __align__(128) char held[];  // rows [4][STEPS][512], rings [4][PIECES][PIECE]
  __shared__ __align__(16) float4 come[2][SPLIT - 1][OWN][THREADS];  // by turn, from the others in order
  __shared__ __align__(8) unsigned long long arrived[2];
  __shared__ float scales[R];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % SPLIT, cluster = blockIdx.x / SPLIT, tiles_at_once = gridDim.x / SPLIT * 4;
  let_next_start();

  // 1. The first pieces of the weights.  A lane asks for what it will read itself, so that nobody waits for others.
  const int turns = a.outputs / 8 / tiles_at_once;
  const u32 ring = shared_address(held) + ROWS_BYTES + warp * PIECES * PIECE + lane * 16;
  const char *next = (const char *)a.weights + packed_step<K, 1>(cluster * 4 + warp, rank * STEPS) + lane * 16;
  int left = turns * TURN, asked = 0;  // pieces to ask for; the next one's place in its tile
  auto ask = [&](int slot) {
    if (left > 0) {
#pragma unroll
      for (int i = 0; i < 2 * AT_ONCE; i++) copy_piece(ring + slot * PIECE + i * 512, next + i * 512);
      left--;
      next += PIECE;
      if (++asked == TURN) { asked = 0; next += (size_t)tiles_at_once * (K / 32) * 1024 - TURN * PIECE; }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int slot = 0; slot < PIECES; slot++) ask(slot);
  constexpr int BYTES = (SPLIT - 1) * OWN * THREADS * 16;  // of a turn's sums that others send
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; i++) {
      barrier_init(shared_address(&arrived[i]), 1);
      expect_bytes(shared_address(&arrived[i]), BYTES);
    }
  arrive_at_cluster();
  if (a.page_bytes) bring_pages(a);
  const bf16 *rows = a.rows + (size_t)rank * STEPS * 256 + lane * 8;
  const float *squares = a.squares;
  const int square_count = a.square_count;
  asm volatile("" : "+l"(rows), "+l"(squares));  // read the launch's parameters now, not after the wait

  // 2. The rows.  The fragments' order of columns has those of a lane apart: 8 columns of a row as the products read them are the
  // same pair of four lanes.  So each of a lane's pairs goes to another group of 128 bytes, 8 rows by 16 bytes.
  wait_for_previous();
  constexpr int LOADS = 4 * STEPS / 4;
  uint4 x[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int place = i * 4 + warp;
    x[i] = load_activation(rows + ((size_t)(place / STEPS) * (K / 32) + place % STEPS) * 256);
  }
  row_scales<K, R, 4>(squares, square_count, a.eps, scales);
  const u32 to = shared_address(held) + lane * 4;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const u32 at = to + (i * 4 + warp) * 512, pairs[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
    for (int q = 0; q < 4; q++) asm volatile("st.shared.u32 [%0], %1;" :: "r"(at + q * 128), "r"(pairs[q]) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the products read them by another way than stores take
  __syncthreads();
  wait_for_cluster();

  // 3. Turn by turn.
  const unsigned long long described = rows_described(shared_address(held), STEPS * 512);
  float scale[OWN][2];
#pragma unroll
  for (int j = 0; j < OWN; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) scale[j][e] = scales[8 * (rank * OWN + j) + 2 * t + e];
  int slot = 0;
  for (int turn = 0; turn < turns; turn++) {
    float sum[16];
    uint4 w[2][2 * AT_ONCE];
#pragma unroll
    for (int p = 0; p < TURN; p++) {
      asm volatile("cp.async.wait_group %0;" :: "n"(PIECES - 1) : "memory");
      if (p > 1) await_products<1>();  // those that read these registers
      const char *at = held + ROWS_BYTES + (warp * PIECES + slot) * PIECE + lane * 16;
#pragma unroll
      for (int i = 0; i < 2 * AT_ONCE; i++) w[p & 1][i] = *(const uint4 *)(at + i * 512);
      fence_products();
#pragma unroll
      for (int i = 0; i < 2 * AT_ONCE; i++)  // half a step of 32 columns each
        group_multiply_add(sum, w[p & 1][i], described + (p * AT_ONCE * 512 + i * 256) / 16, p + i > 0);
      commit_products();
      ask(slot);
      if (++slot == PIECES) slot = 0;
    }
    await_products<0>();
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+f"(sum[i]) :: "memory");  // not read before

    // 4. The sum over the cluster, SwiGLU.  A lane has rows 2 t and 2 t + 1 of each eighth, of gate's and of up's output g.
    const int parity = turn & 1;
    float mine[OWN][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int owner = j / OWN;
      if (owner == rank) {
#pragma unroll
        for (int i = 0; i < 4; i++) mine[j % OWN][i] = sum[4 * j + i];
      } else {
        store_there(in_block(shared_address(&come[parity][rank - (rank > owner)][j % OWN][threadIdx.x]), owner),
                    in_block(shared_address(&arrived[parity]), owner), sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
      }
    }
    await_sent(shared_address(&arrived[parity]), turn >> 1 & 1);
    // Whoever sends for the turn after next has had what this block sends for the next one, so nothing here is overwritten.
    if (threadIdx.x == 0 && turn + 2 < turns) expect_bytes(shared_address(&arrived[parity]), BYTES);
    const int output = (turn * tiles_at_once + cluster * 4 + warp) * 8 + (g & ~1);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
#pragma unroll
      for (int other = 0; other < SPLIT - 1; other++) {
        const float4 one = come[parity][other][j][threadIdx.x];
        mine[j][0] += one.x; mine[j][1] += one.y; mine[j][2] += one.z; mine[j][3] += one.w;
      }
      float value[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float v = mine[j][e] * scale[j][e], u = mine[j][2 + e] * scale[j][e];
        value[e] = __fdividef(v, 1.f + __expf(-v)) * u;
      }
      // Two lanes with neighbouring outputs store a pair each: one that of the first row, one that of the second.
      const float given = __shfl_xor_sync(~0u, g & 1 ? value[0] : value[1], 4);
      const int row = 8 * (rank * OWN + j) + 2 * t + (g & 1);
      const size_t place = GROUPED ? grouped(row, output, a.outputs) : tiled(row, output, a.outputs);
      *(u32 *)((bf16 *)a.out + place) = g & 1 ? pack(given, value[1]) : pack(value[0], given);
    }
  }
}
