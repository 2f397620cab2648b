// A matrix times several rows in parts of the columns, whose sums are left for the reader to add.
//
// A block that reads all columns reads all of the rows: with 32 of them more bytes than its weights have.  Here it has 16 TILES
// GROUPS outputs and one of SPLIT parts of the columns, so that it reads that part of the rows alone, once.  Its weights wait in
// registers: of a block's warps each takes TILES tiles and one of PARTS parts of the block's columns.  The norm's scale by row and
// the bias are the reader's (`load_parts`), so nothing but the rows is waited for.
#pragma once
#include "rows_stream.cuh"

// The matrix is packed in blocks of TOGETHER tiles.  `out` is [R][SPLIT][N].
template <int K, int TOGETHER, int TILES, int GROUPS, int PARTS, int SPLIT, int ROW_TILES>
__device__ __forceinline__ void rows_parts(const RowsProductArguments &a) {
  constexpr int WARPS = GROUPS * PARTS, THREADS = 32 * WARPS, R = 8 * ROW_TILES, BLOCK_STEPS = K / 32 / SPLIT, STEPS = BLOCK_STEPS / PARTS;
  constexpr int OUTPUTS = 16 * TILES * GROUPS, STRIDE = OUTPUTS + 4, QUADS = OUTPUTS / 4;  // 4: neighbours in other banks
  constexpr int EACH = BLOCK_STEPS * 32, PIECES = ROW_TILES * EACH;  // pieces of 16 bytes, of eight rows and of all
  static_assert(K % (32 * SPLIT * PARTS) == 0, "whole steps");
  extern __shared__ __align__(128) char held[];  // the rows [ROW_TILES][BLOCK_STEPS][512], then sums float [PARTS][R][STRIDE]
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int group = warp % GROUPS, part = warp / GROUPS, split = blockIdx.x % SPLIT, first_tile = blockIdx.x / SPLIT * (TILES * GROUPS);
  STAMP(0, 0);
  let_next_start();

  // 1. Weights.
  uint4 w[STEPS][TILES][2];
#pragma unroll
  for (int p = 0; p < STEPS; p++)
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      const char *at = (const char *)a.weights + lane * 16
                     + packed_step<K, TOGETHER>(first_tile + group * TILES + n, split * BLOCK_STEPS + part * STEPS + p);
      w[p][n][0] = load_weight(at);
      w[p][n][1] = load_weight(at + 512);
    }
  if (a.page_bytes) bring_pages(a);
  const bf16 *rows = a.rows + (size_t)split * BLOCK_STEPS * 256 + threadIdx.x * 8;
  float *out = (float *)a.out + (size_t)split * a.outputs + first_tile * 16;
  asm volatile("" : "+l"(rows), "+l"(out));  // read the launch's parameters now, not after the wait
  const u32 target = shared_address(held) + threadIdx.x * 16;

  // 2. The block's part of the rows.
  STAMP(0, 1);
  wait_for_previous();
  STAMP(0, 2);
#pragma unroll
  for (int first = 0; first < PIECES; first += THREADS) {
    const int i = first + threadIdx.x;
    if (PIECES % THREADS == 0 || i < PIECES)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                   :: "r"(target + first * 16), "l"(rows + first * 8 + i / EACH * (K / 32 - BLOCK_STEPS) * 256) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  STAMP(0, 3);

  // 3. The product.
  float sum[TILES][ROW_TILES][4] = {};
  const char *own = held + (part * STEPS * 32 + lane) * 16;
#pragma unroll
  for (int p = 0; p < STEPS; p++) {
    uint4 x[ROW_TILES];
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++) x[c] = *(const uint4 *)(own + (c * BLOCK_STEPS + p) * 512);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
      for (int c = 0; c < ROW_TILES; c++) {
        multiply_add(sum[n][c], w[p][n][0].x, w[p][n][0].y, w[p][n][0].z, w[p][n][0].w, x[c].x, x[c].y);
        multiply_add(sum[n][c], w[p][n][1].x, w[p][n][1].y, w[p][n][1].z, w[p][n][1].w, x[c].z, x[c].w);
      }
  }

  // 4. The sum over the block's parts.
  STAMP(0, 4);
  float *const sums = (float *)(held + PIECES * 16);
#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        sums[(part * R + 8 * c + 2 * t + (i & 1)) * STRIDE + (group * TILES + n) * 16 + 8 * (i >> 1) + g] = sum[n][c][i];
  __syncthreads();
#pragma unroll
  for (int first = 0; first < R * QUADS; first += THREADS) {
    const int i = first + threadIdx.x, row = i / QUADS, quad = i % QUADS;
    if (R * QUADS % THREADS && i >= R * QUADS) break;
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
      const float4 one = *(const float4 *)(sums + (q * R + row) * STRIDE + 4 * quad);
      all.x += one.x; all.y += one.y; all.z += one.z; all.w += one.w;
    }
    *(float4 *)(out + (size_t)row * SPLIT * a.outputs + 4 * quad) = all;
  }
  STAMP(0, 7);
}
