// A matrix of many megabytes times several rows: tiles stream through a ring in shared memory.
//
// As stream.cuh, by row: a block walks over its tiles (every gridDim.x-th one) of the packed matrix, and each warp has STAGES
// steps of its own slice of k under way, some of them before the rows are there.  The rows stay in registers.
#pragma once
#include "rows_product.cuh"

// Where a step of a tile begins in a matrix that is packed in blocks of TOGETHER tiles: a kilobyte, behind it the same step of
// the block's other tiles.  How many warps it was packed for does not matter.
template <int K, int TOGETHER> __device__ __forceinline__ size_t packed_step(int tile, int step) {
  return ((size_t)(tile / TOGETHER) * (K / 32) * TOGETHER + step * TOGETHER + tile % TOGETHER) * 1024;
}

template <int K, int TOGETHER, int WARPS, Epilogue EPILOGUE, int STAGES, int ROW_TILES>
__device__ __forceinline__ void rows_stream(const RowsProductArguments &a) {
  constexpr int SLICE = K / WARPS, STEPS = SLICE / 32, R = 8 * ROW_TILES, THREADS = WARPS * 32, STRIDE = 16 + 4;
  constexpr int OUTPUTS = EPILOGUE == Epilogue::swiglu ? 8 : 16;  // of a tile
  constexpr int LANES = OUTPUTS * R * 4 <= THREADS ? 4 : OUTPUTS * R * 2 <= THREADS ? 2 : 1;  // finish an output of a row
  constexpr int ROUNDS = (OUTPUTS * R * LANES + THREADS - 1) / THREADS, SPAN = R * STRIDE + 8;
  static_assert(K % WARPS == 0 && SLICE % 32 == 0 && EPILOGUE != Epilogue::residual, "stream");
  extern __shared__ __align__(128) char held[];  // [WARPS][STAGES][1024], then float [2][WARPS][SPAN]
  __shared__ float scales[R];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  STAMP(3, 0);
  let_next_start();

  // 1. The first steps of the weights.  A lane asks for what it will read itself, so that nobody waits for others.
  const int tiles = (a.outputs / OUTPUTS - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const u32 ring = shared_address(held) + warp * STAGES * 1024 + lane * 16;
  const char *weights = (const char *)a.weights + packed_step<K, TOGETHER>(0, warp * STEPS) + lane * 16;
  int left = tiles * STEPS, ahead = 0, asked = blockIdx.x;  // tile
  auto ask = [&](int stage) {
    if (left > 0) {
      const char *at = weights + packed_step<K, TOGETHER>(asked, ahead);
      copy_piece(ring + stage * 1024, at);
      copy_piece(ring + stage * 1024 + 512, at + 512);
      left--;
      if (++ahead == STEPS) {
        ahead = 0;
        asked += gridDim.x;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) ask(stage);
  if (a.page_bytes) bring_pages(a);
  const bf16 *rows = a.rows + warp * STEPS * 256 + lane * 8;
  const float *squares = a.squares;
  const int square_count = a.square_count;
  asm volatile("" : "+l"(rows), "+l"(squares));  // read the launch's parameters now, not after the wait

  // 2. The rows.
  STAMP(3, 1);
  wait_for_previous();
  STAMP(3, 2);
  uint4 x[ROW_TILES][STEPS];
#pragma unroll
  for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
    for (int p = 0; p < STEPS; p++) x[c][p] = load_activation(rows + (c * (K / 32) + p) * 256);
  row_scales<K, R, WARPS>(squares, square_count, a.eps, scales);  // the first tile's barrier comes before they are read

  // 3. Tile by tile.
  STAMP(3, 3);
  float *const all_sums = (float *)(held + WARPS * STAGES * 1024);
  int stage = 0;
  for (int i = 0; i < tiles; i++) {
    float sum[ROW_TILES][4] = {};
#pragma unroll
    for (int p = 0; p < STEPS; p++) {
      asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
      const char *at = held + (warp * STAGES + stage) * 1024 + lane * 16;
      const uint4 u = *(const uint4 *)at, v = *(const uint4 *)(at + 512);
#pragma unroll
      for (int c = 0; c < ROW_TILES; c++) {
        multiply_add(sum[c], u.x, u.y, u.z, u.w, x[c][p].x, x[c][p].y);
        multiply_add(sum[c], v.x, v.y, v.z, v.w, x[c][p].z, x[c][p].w);
      }
      ask(stage);
      if (++stage == STAGES) stage = 0;
    }
    if (i == 0) STAMP(3, 4);
    if (i == tiles - 1) STAMP(3, 5);
    float *const sums = all_sums + (i & 1) * WARPS * SPAN;  // the tile before last is finished: its warps came through a barrier
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int row = 8 * c + 2 * t + (j & 1);
        sums[warp * SPAN + row * STRIDE + 8 * (j >> 1) + g] = sum[c][j];
      }
    __syncthreads();
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
      const int index = round * THREADS + threadIdx.x, pair = index / LANES, part = index % LANES;
      if ((index & ~31) >= OUTPUTS * R * LANES) break;
      const int row = pair / OUTPUTS, own = pair % OUTPUTS;
      const int output = ((int)blockIdx.x + i * (int)gridDim.x) * OUTPUTS + own;
      float v = 0, u = 0;
#pragma unroll
      for (int j = 0; j < WARPS / LANES; j++) {
        const float *one = sums + (j * LANES + part) * SPAN + row * STRIDE + own;
        v += one[0];
        if (EPILOGUE == Epilogue::swiglu) u += one[8];
      }
#pragma unroll
      for (int offset = LANES / 2; offset; offset >>= 1) {
        v += __shfl_xor_sync(~0u, v, offset);
        if (EPILOGUE == Epilogue::swiglu) u += __shfl_xor_sync(~0u, u, offset);
      }
      v *= scales[row];
      u *= scales[row];
      if (part) continue;
      if constexpr (EPILOGUE == Epilogue::qkv)
        ((float *)a.out)[(size_t)row * a.outputs + output] = v + (a.bias ? a.bias[output] : 0.f);
      else
        ((bf16 *)a.out)[tiled(row, output, a.outputs)] = __float2bfloat16(__fdividef(v, 1.f + __expf(-v)) * u);
    }
    __syncwarp();
  }
  STAMP(3, 7);
}
