// A matrix of many megabytes times one row, with what product.cuh has before and after it.
//
// Its share of such a matrix fits no multiprocessor at once.  A block walks over its tiles (every gridDim.x-th one) and
// the weights stream through a ring in shared memory: each warp has STAGES pieces of STAGE kilobytes of its own slice of
// k under way, fills the ring before the row is there, and asks for the next piece as soon as it has used one.  A ring above
// half of a multiprocessor's shared memory keeps two blocks from lying on one while others stand empty.
//
// Weights lie as they are stored, [N][K] (of swiglu gate's rows, then up's), so that prompts read the same copy, or packed
// as for product.cuh: lane t of a quad takes 8 consecutive k (16 bytes) of two rows for two products.  ROWS rows of
// 16 / ROWS parts of k are a tile.  Of a stored matrix a warp asks for whole lines, 4 rows of 128 bytes at once, so that
// its STAGE is two steps of 32 k; half lines, each lane what it reads itself, were 2 % slower.
//
// The head is a product too: of its tiles each block keeps the largest logit (advance.cuh).
#pragma once
#include "product.cuh"

enum class Layout { packed, stored };

template <int K, int ROWS, int WARPS, Epilogue EPILOGUE, Layout LAYOUT, int STAGE, int STAGES>
__device__ __forceinline__ void stream(const ProductArguments &a) {
  constexpr int PARTS = 16 / ROWS, COLUMNS = 2 * PARTS, PART = K / PARTS, STEPS = (PART / 32 + WARPS - 1) / WARPS, SLICE = STEPS * 32;
  constexpr int PIECES = STEPS / STAGE, PIECE_BYTES = STAGE * 1024, STRIDE = 16 + 8;
  constexpr bool NORM = EPILOGUE != Epilogue::residual;
  constexpr int OUTPUTS = EPILOGUE == Epilogue::swiglu ? 8 : ROWS;  // of a tile; four lanes finish one
  constexpr int WARPS_FINISH = (OUTPUTS + 7) / 8;
  static_assert(PART % (32 * STAGE) == 0 && STEPS % STAGE == 0, "tile");
  constexpr bool RAGGED = STEPS * WARPS * 32 != PART;  // the last warps have fewer steps
  constexpr bool STORED = LAYOUT == Layout::stored;
  static_assert(!RAGGED || STORED, "a packed matrix has whole steps");
  static_assert(!STORED || STAGE == 2, "lines");
  extern __shared__ __align__(128) char held[];
  __shared__ float sums[2][WARPS][STRIDE];
  __shared__ float square_sums[WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  NOTE_TIME(0);
  let_next_start();

  // 1. The first pieces of the weights.  Packed, a lane asks for what it will read itself, so that nobody waits for others.
  // Stored, it asks for 16 bytes of a line; their places in the line change by 4 in odd rows, so that lanes that read together
  // read other banks.
  const int tiles = ((int)blockIdx.x < a.tiles) ? (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 0;
  const int line = lane >> 3, place = lane & 7;
  const u32 ring = shared_address(held) + warp * STAGES * PIECE_BYTES
                 + (STORED ? line * 128 + (place ^ (line & 1) << 2) * 16 : lane * 16);
  // `upper` are rows 0 to 7 of a tile, `lower` rows 8 to 15; of swiglu those are gate's and up's.  Packed, the two are 512 bytes
  // apart, and so are the steps of a warp.
  const int steps = RAGGED ? min(STEPS, PART / 32 - warp * STEPS) : STEPS;
  const char *upper = (const char *)a.weights
                    + (STORED ? (((size_t)blockIdx.x * OUTPUTS + line) * K + warp * SLICE) * 2 + place * 16
                              : ((size_t)blockIdx.x * WARPS + warp) * STEPS * 1024 + lane * 16);
  const char *lower = upper
                    + (!STORED ? 512 : EPILOGUE == Epilogue::swiglu ? (size_t)a.tiles * OUTPUTS * K * 2
                                     : (size_t)(ROWS == 16 ? 8 * K : 8 / ROWS * PART) * 2);
  const size_t stride = (size_t)gridDim.x * (STORED ? OUTPUTS * K * 2 : WARPS * STEPS * 1024);
  int left = tiles * PIECES, ahead = 0;  // pieces to ask for; the next one's place in its tile
  auto ask = [&](int stage) {            // a piece, or an empty group behind the last one
    if (left > 0) {
      constexpr int FOUR_ROWS = (ROWS == 4 ? PART : 4 * K) * 2;  // bytes from four rows of a tile to the next four
#pragma unroll
      for (int s = 0; s < STAGE; s++) {
        if (RAGGED && ahead * STAGE >= steps) continue;
        const u32 target = ring + stage * PIECE_BYTES + s * (STORED ? 512 : 1024);
        const size_t from = STORED ? s * FOUR_ROWS + ahead * 128 : (ahead * STAGE + s) * 1024;
        copy_piece(target, upper + from);
        copy_piece(target + (STORED ? 1024 : 512), lower + from);
      }
      left--;
      if (++ahead == PIECES) { ahead = 0; upper += stride; lower += stride; }
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
    if (g < COLUMNS && (!RAGGED || p < steps)) x[p] = load_activation(row + p * 32);
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
  float squared = 0, best = -INFINITY;
  int best_id = 0x7fffffff;
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
      if (STORED) __syncwarp();
      const char *at = held + (warp * STAGES + stage) * PIECE_BYTES + (STORED ? g * 128 : lane * 16);
#pragma unroll
      for (int s = 0; s < STAGE; s++) {
        const int p = piece * STAGE + s;
        if (RAGGED && p >= steps) continue;
        const int first = STORED ? ((4 * s + t) ^ (g & 1) << 2) * 16 : s * 1024, second = first + (STORED ? 1024 : 512);
        const uint4 u = *(const uint4 *)(at + first), v = *(const uint4 *)(at + second);
        if (STORED) {
          multiply_add(sum[0], u.x, v.x, u.y, v.y, x[p].x, x[p].y);
          multiply_add(sum[1], u.z, v.z, u.w, v.w, x[p].z, x[p].w);
        } else {
          multiply_add(sum[0], u.x, u.y, u.z, u.w, x[p].x, x[p].y);
          multiply_add(sum[1], v.x, v.y, v.z, v.w, x[p].z, x[p].w);
        }
      }
      if (STORED) __syncwarp();  // all lanes have read the stage
      ask(stage);
      if (++stage == STAGES) stage = 0;
    }
    float(&parts)[WARPS][STRIDE] = sums[i & 1];  // the tile before last is finished: its warps came through a barrier
    if (t == g / ROWS) parts[warp][g] = (sum[0][0] + sum[1][0]) + (sum[0][1] + sum[1][1]);
    if (t == (g + 8) / ROWS) parts[warp][g + 8] = (sum[0][2] + sum[1][2]) + (sum[0][3] + sum[1][3]);
    __syncthreads();
    if (warp >= WARPS_FINISH) continue;
    const int first = own < OUTPUTS ? own : 0;
    const float2 found = sum_slices<K, ROWS, EPILOGUE>(parts, square_sums, first, quarter, a.eps);
    float v = found.x;
    const float u = found.y;
    if (finishes) {
      if constexpr (EPILOGUE == Epilogue::head) {
        if (v > best) { best = v; best_id = output; }
        if (!(v < INFINITY)) { best = INFINITY; best_id = NO_TOKEN; }
      } else if constexpr (EPILOGUE == Epilogue::qkv) {
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
  if constexpr (EPILOGUE == Epilogue::head) {
    __shared__ float bests[OUTPUTS];
    __shared__ int ids[OUTPUTS];
    if (finishes) { bests[own] = best; ids[own] = best_id; }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < OUTPUTS; i++)
        if (bests[i] > best || (bests[i] == best && ids[i] < best_id)) { best = bests[i]; best_id = ids[i]; }
      ((float *)a.out)[blockIdx.x] = best;
      a.out_id[blockIdx.x] = best_id;
    }
  }
  NOTE_TIME(5);
}
