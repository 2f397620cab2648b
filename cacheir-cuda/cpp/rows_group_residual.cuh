// A matrix times up to 32 rows, plus the residual, by products of a whole warpgroup: blocks that lie beside those of their neighbours.
//
// As rows_residual.cuh, a cluster of SPLIT blocks shares the columns of the matrix as it is stored, here of 64 TILES outputs, of
// which each warp has 16 of every 64.  Weights stream through a ring of each warp, STAGES steps of 64 columns, the first of them
// before the wait.  The rows come `grouped`, as the products read them, SLOTS pieces of 128 columns, by copies in bulk.  Sixteen
// outputs are finished by one block, whom the others send their sums.
#pragma once
#include "group.cuh"
#include "rows_product.cuh"

template <int K, int TILES, int SPLIT, int STAGES, int SLOTS>
__device__ __forceinline__ void rows_group_residual(const RowsProductArguments &a) {
  constexpr int UNITS = K / 128, STAGE = TILES * 2048, SLOT = 4 * 2048, OWNERS = 4 * TILES;
  constexpr int MOST = (UNITS + SPLIT - 1) / SPLIT;
  static_assert(K % 128 == 0 && SPLIT >= OWNERS && UNITS / SPLIT >= SLOTS, "split");
  extern __shared__ __align__(128) char held[];  // rows [SLOTS][4][2048], rings [4][STAGES][STAGE]
  __shared__ __align__(16) float4 come[SPLIT][4][32];
  __shared__ __align__(8) unsigned long long arrived, there[SLOTS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % SPLIT, first_output = blockIdx.x / SPLIT * (64 * TILES);
  const int from = rank * UNITS / SPLIT, units = (rank + 1) * UNITS / SPLIT - from;
  let_next_start();

  // 1. The first of the weights, and all else that is known already.  A copy of the warp is of 4 rows by 128 bytes; in
  // shared memory piece i of row r lies at place i ^ r % 8, so that what eight lanes read together lies in other banks.
  const int copy_row = lane >> 3, piece_of_row = lane & 7;
  const u32 ring = shared_address(held) + SLOTS * SLOT + warp * STAGES * STAGE, target = ring + copy_row * 128 + (piece_of_row ^ copy_row) * 16;
  const bf16 *next = a.weights + (size_t)(first_output + warp * 16 + copy_row) * K + from * 128 + piece_of_row * 8;
  int left = 2 * units;
  auto ask = [&](int stage) {
    if (left > 0) {
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          copy_piece((target ^ (i & 1) << 6) + stage * STAGE + n * 2048 + i * 512, next + (size_t)(n * 64 + i * 4) * K);
      left--;
      next += 64;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int stage = 0; stage < STAGES; stage++) ask(stage);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&arrived), 1);
    if (rank < OWNERS) expect_bytes(shared_address(&arrived), SPLIT * 4 * 32 * 16);
#pragma unroll
    for (int i = 0; i < SLOTS; i++) barrier_init(shared_address(&there[i]), 1);
  }
  arrive_at_cluster();
  __syncthreads();
  if (a.page_bytes) bring_pages(a);
  const bf16 *rows = a.rows + (size_t)from * 1024;
  const int row = 8 * warp + 2 * t, output = first_output + rank * 16 + g;  // a finishing lane's: two rows, of outputs g and g + 8
  const float *residuals = a.residual + (size_t)row * a.outputs + output;
  float gain[2] = {0, 0}, residual[4] = {0, 0, 0, 0};
  if (rank < OWNERS) { gain[0] = a.gain[output]; gain[1] = a.gain[output + 8]; }
  asm volatile("" : "+l"(rows), "+l"(residuals));  // read the launch's parameters now, not after the wait
  auto ask_rows = [&](int slot, int unit) {  // by one thread
    const u32 barrier = shared_address(&there[slot]), to = shared_address(held) + slot * SLOT;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "n"(SLOT) : "memory");
#pragma unroll
    for (int c = 0; c < 4; c++)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(to + c * 2048), "l"(rows + ((size_t)c * (K / 128) + unit) * 1024), "n"(2048), "r"(barrier) : "memory");
  };

  // 2. The first of the rows.
  wait_for_previous();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int i = 0; i < SLOTS; i++) ask_rows(i, i);
  if (rank < OWNERS) {  // they come while the product goes on
#pragma unroll
    for (int e = 0; e < 2; e++) {
      residual[e] = load_float(residuals + (size_t)e * a.outputs);
      residual[2 + e] = load_float(residuals + (size_t)e * a.outputs + 8);
    }
  }

  // 3. The product.
  const u32 held_at = shared_address(held);
  const u32 own = ring + (lane & 15) * 128, places = lane >> 4 ^ (lane & 7);
  float sum[TILES][16];
  uint4 w[2][TILES][4];  // by step of a piece
  int stage = 0, slot = 0, phase = 0;
#pragma unroll
  for (int unit = 0; unit < MOST; unit++) {
    if (unit >= units) break;
    await_phase(shared_address(&there[slot]), phase);
    const unsigned long long described = rows_described(held_at + slot * SLOT, 2048);
#pragma unroll
    for (int s = 0; s < 2; s++) {
      asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
      __syncwarp();  // lanes read what others asked for
      await_products<1>();  // those that read these registers, and all of the piece before where s is 1
      if (s == 1 && unit && unit - 1 + SLOTS < units) {
        __syncthreads();  // every warp's products have read the piece before
        if (threadIdx.x == 0) ask_rows(slot ? slot - 1 : SLOTS - 1, unit - 1 + SLOTS);
      }
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) w[s][n][i] = load_fragment(own + stage * STAGE + n * 2048 + ((places ^ 2 * i) << 4));
      fence_products();
#pragma unroll
      for (int i = 0; i < 4; i++)  // 16 columns each
#pragma unroll
        for (int n = 0; n < TILES; n++) group_multiply_add(sum[n], w[s][n][i], described + (s * 4 + i) * 256 / 16, unit + s + i > 0);
      commit_products();
      __syncwarp();  // the stage has been read
      ask(stage);
      if (++stage == STAGES) stage = 0;
    }
    if (++slot == SLOTS) { slot = 0; phase ^= 1; }
  }
  await_products<0>();
#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+f"(sum[n][i]) :: "memory");  // not read before
  wait_for_cluster();
#pragma unroll
  for (int n = 0; n < TILES; n++) {
    const int owner = n * 4 + warp;
#pragma unroll
    for (int j = 0; j < 4; j++)
      store_there(in_block(shared_address(&come[rank][j][lane]), owner), in_block(shared_address(&arrived), owner), sum[n][4 * j],
                  sum[n][4 * j + 1], sum[n][4 * j + 2], sum[n][4 * j + 3]);
  }

  // 4. The sum over the blocks, and what comes after it: each warp finishes eight rows.
  if (rank >= OWNERS) return;
  await_bytes(shared_address(&arrived));
  float v[4] = {residual[0], residual[1], residual[2], residual[3]};  // rows 2 t and 2 t + 1 of output g, then of output g + 8
#pragma unroll
  for (int other = 0; other < SPLIT; other++) {
    const float4 one = come[other][warp][lane];
    v[0] += one.x; v[1] += one.y; v[2] += one.z; v[3] += one.w;
  }
  float *const out = (float *)a.out + (size_t)row * a.outputs + output;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    out[(size_t)(i & 1) * a.outputs + (i >> 1) * 8] = v[i];
    // Two lanes with neighbouring outputs store a pair each: one that of the first row, one that of the second.
    if (i & 1) {
      const float low = v[i - 1] * gain[i >> 1], high = v[i] * gain[i >> 1], given = __shfl_xor_sync(~0u, g & 1 ? low : high, 4);
      *(u32 *)(a.next + tiled(row + (g & 1), (output & ~1) + (i >> 1) * 8, a.outputs)) = g & 1 ? pack(given, high) : pack(low, given);
    }
  }
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float squared = v[e] * v[e] + v[2 + e] * v[2 + e];
#pragma unroll
    for (int offset = 4; offset < 32; offset <<= 1) squared += __shfl_xor_sync(~0u, squared, offset);
    if (g == 0) a.next_squares[(size_t)(row + e) * (gridDim.x / SPLIT * OWNERS) + blockIdx.x / SPLIT * OWNERS + rank] = squared;
  }
}
