// A matrix of many megabytes times one row, with what product.cuh has before and after it.
//
// Such a matrix fits no multiprocessor's share of it at once.  A block walks over its tiles (every gridDim.x-th one) and
// the weights stream through a ring in shared memory: each warp has STAGES pieces of STAGE kilobytes of its own slice of
// k under way, fills the ring before the row is there, and asks for the next piece as soon as it has used one.  The ring
// is small enough that the block of the next kernel lies on the multiprocessor beside it, its own ring filling already.
//
// Packed as for product.cuh: ROWS rows of 16 / ROWS parts of k are a tile.  K may be longer than the matrix is wide; the
// packed weights and the row have zeros there.
#pragma once
#include "product.cuh"

template <int K, int ROWS, int WARPS, Epilogue EPILOGUE, int STAGE, int STAGES>
__device__ __forceinline__ void stream(const ProductArguments &a) {
  constexpr int PARTS = 16 / ROWS, COLUMNS = 2 * PARTS, PART = K / PARTS, SLICE = PART / WARPS, STEPS = SLICE / 32;
  constexpr int PIECES = STEPS / STAGE, PIECE_BYTES = STAGE * 1024, STRIDE = 16 + 8;
  constexpr bool NORM = EPILOGUE != Epilogue::residual;
  constexpr int OUTPUTS = EPILOGUE == Epilogue::swiglu ? 8 : ROWS;  // of a tile; four lanes finish one
  constexpr int WARPS_FINISH = (OUTPUTS + 7) / 8;
  static_assert(K % PARTS == 0 && PART % WARPS == 0 && SLICE % 32 == 0 && STEPS % STAGE == 0, "tile");
  extern __shared__ __align__(128) char held[];
  __shared__ float sums[2][WARPS][STRIDE];
  __shared__ float square_sums[WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  NOTE_TIME(0);
  let_next_start();

  // 1. The first pieces of the weights.  A lane asks for what it will read itself, so that nobody waits for others.
  const int tiles = ((int)blockIdx.x < a.tiles) ? (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 0;
  const u32 ring = shared_address(held) + warp * STAGES * PIECE_BYTES + lane * 16;
  const char *source = (const char *)a.weights + ((size_t)blockIdx.x * WARPS + warp) * STEPS * 1024 + lane * 16;
  const size_t stride = (size_t)gridDim.x * WARPS * STEPS * 1024;
  int left = tiles * PIECES, ahead = 0;  // pieces to ask for; the next one's place in its tile
  auto ask = [&](int stage) {            // a piece, or an empty group behind the last one
    if (left > 0) {
#pragma unroll
      for (int s = 0; s < 2 * STAGE; s++)
        copy_piece(ring + stage * PIECE_BYTES + s * 512, source + ahead * PIECE_BYTES + s * 512);
      left--;
      if (++ahead == PIECES) { ahead = 0; source += stride; }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) ask(stage);
  if (EPILOGUE == Epilogue::qkv && a.page_bytes) bring_pages(a);
  const int own = threadIdx.x >> 2, quarter = threadIdx.x & 3;
  const bool finishes = quarter == 0 && own < OUTPUTS;
  const bf16 *row = a.row + (g & 1) * K + (g >> 1) * PART + warp * SLICE + 8 * t;
  const float *residuals = a.residual, *squares = a.squares;
  const int square_count = a.square_count;
  asm volatile("" : "+l"(row), "+l"(residuals), "+l"(squares));  // read the launch's parameters now, not after the wait

  // 2. The row.
  NOTE_TIME(1);
  wait_for_previous();
  NOTE_TIME(2);
  uint4 x[STEPS];
#pragma unroll
  for (int p = 0; p < STEPS; p++) {
    x[p] = make_uint4(0, 0, 0, 0);
    if (g < COLUMNS) x[p] = load_activation(row + p * 32);
  }
  if (NORM) {
    float square = 0;
    for (int i = threadIdx.x; i < square_count; i += WARPS * 32) square += load_float(squares + i);
    square = lane_sum<32>(square);
    if (lane == 0) square_sums[warp] = square;  // the first tile's barrier comes before it is read
  }
  NOTE_TIME(3, x[STEPS - 1].x);

  // 3. Tile by tile.
  int stage = 0;
  float squared = 0;
  for (int i = 0; i < tiles; i++) {
    const int output = ((int)blockIdx.x + i * (int)gridDim.x) * OUTPUTS + own;
    float residual = 0, gain = 0, bias = 0;
    if (finishes) {
      if (EPILOGUE == Epilogue::residual) { residual = load_float(residuals + output); gain = a.gain[output]; }
      if (EPILOGUE == Epilogue::qkv && a.bias) bias = a.bias[output];
    }
    float sum[2][4] = {};
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
      asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
      const char *at = held + (warp * STAGES + stage) * PIECE_BYTES + lane * 16;
#pragma unroll
      for (int s = 0; s < STAGE; s++) {
        const int p = piece * STAGE + s;
        const uint4 u = *(const uint4 *)(at + s * 1024), v = *(const uint4 *)(at + s * 1024 + 512);
        multiply_add(sum[0], u.x, u.y, u.z, u.w, x[p].x, x[p].y);
        multiply_add(sum[1], v.x, v.y, v.z, v.w, x[p].z, x[p].w);
      }
      ask(stage);
      if (++stage == STAGES) stage = 0;
    }
    float(*const parts)[STRIDE] = sums[i & 1];  // the tile before last is finished: its warps came through a barrier
    if (t == g / ROWS) parts[warp][g] = (sum[0][0] + sum[1][0]) + (sum[0][1] + sum[1][1]);
    if (t == (g + 8) / ROWS) parts[warp][g + 8] = (sum[0][2] + sum[1][2]) + (sum[0][3] + sum[1][3]);
    __syncthreads();
    if (warp >= WARPS_FINISH) continue;
    const int first = own < OUTPUTS ? own : 0;
    float v = 0, u = 0, total = 0;
#pragma unroll
    for (int k = 0; k < (WARPS + 3) / 4; k++) {
      const int part = k * 4 + quarter;
      if (WARPS % 4 == 0 || part < WARPS) {
#pragma unroll
        for (int r = 0; r < PARTS; r++) v += parts[part][first + r * ROWS];
        if (EPILOGUE == Epilogue::swiglu) u += parts[part][first + 8];
        if (NORM) total += square_sums[part];
      }
    }
    v += __shfl_xor_sync(~0u, v, 1); v += __shfl_xor_sync(~0u, v, 2);
    if (EPILOGUE == Epilogue::swiglu) { u += __shfl_xor_sync(~0u, u, 1); u += __shfl_xor_sync(~0u, u, 2); }
    if (NORM) {
      total += __shfl_xor_sync(~0u, total, 1); total += __shfl_xor_sync(~0u, total, 2);
      const float scale = rsqrtf(total * (1.f / K) + a.eps);
      v *= scale; u *= scale;
    }
    if (finishes) {
      if constexpr (EPILOGUE == Epilogue::qkv) {
        ((float *)a.out)[output] = v + bias;
      } else if constexpr (EPILOGUE == Epilogue::swiglu) {
        store_split((bf16 *)a.out, output, a.outputs, __fdividef(v, 1.f + __expf(-v)) * u);
      } else {
        v += residual;
        ((float *)a.out)[output] = v;
        store_split(a.next, output, a.outputs, v * gain);
        squared += v * v;
      }
    }
    __syncwarp();
  }
  if (EPILOGUE == Epilogue::residual && warp < WARPS_FINISH) {
    squared = lane_sum<32>(squared);
    if (lane == 0) a.next_squares[blockIdx.x * WARPS_FINISH + warp] = squared;
  }
  NOTE_TIME(5);
}
