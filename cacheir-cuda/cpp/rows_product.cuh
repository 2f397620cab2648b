// A matrix times several rows, with what comes before and after it: the norm's scale by row, bias, residual, SwiGLU.
//
// Weights are packed as for one row (product.cuh) and wait in registers or shared memory; the eight columns of the other
// operand are eight rows of activations, rounded to bfloat16 and stored as a warp reads them (`tiled`).  ROW_TILES such
// columns take the same weights in turn.  A
// tile of fewer than 16 matrix rows has parts of k below each other: each part has sums of its own, of which only the
// part's rows are kept.
#pragma once
#include "product.cuh"

struct RowsProductArguments {
  const bf16 *weights;    // packed
  const bf16 *rows;       // [R][K], tiled
  const float *squares;   // [R][square_count]: parts of each row's sum of squares before its norm's weights (qkv, swiglu)
  const float *bias;      // [N] or null (qkv)
  const float *residual;  // [R][N] (residual)
  const float *gain;      // [N]: weights of the norm that comes next (residual)
  void *out;              // qkv, residual: f32 [R][N]; swiglu: bf16 [R][N / 2], tiled
  bf16 *next;             // [R][N], tiled: out times gain (residual)
  float *next_squares;    // [R][parts], one part for each eight outputs (residual)
  int square_count;       // a multiple of 4
  int outputs;            // N, of swiglu N / 2
  float eps;
  // The pages that an attention further on reads are brought into the L2 cache ahead of it.
  int page_bytes, row_count, page_tokens, table_width, step;  // page_bytes: of one page of a layer; 0: none are brought
  const char *pages;
  const int *page_table;  // [row_count][table_width]
  const int *positions;   // [row_count]
};

// Where element k of a row lies among rows of `width`: 8 rows by 32 elements are together, 16 bytes for each lane.
__device__ __forceinline__ size_t tiled(int row, int k, int width) {
  return ((size_t)(row >> 3) * (width / 32) + k / 32) * 256 + (row & 7) * 32 + k % 32;
}

// The blocks are dealt to the rows in turn.
__device__ __forceinline__ void bring_pages(const RowsProductArguments &a) {
  constexpr int PIECE = 8192;
  const int row = blockIdx.x % a.row_count, turns = gridDim.x / a.row_count, turn = blockIdx.x / a.row_count;
  if (turn >= turns) return;
  const int each = a.page_bytes / PIECE, *table = a.page_table + (size_t)row * a.table_width;
  const int pieces = min((a.positions[row] + a.step - 1) / a.page_tokens + 1, a.table_width) * each;
  for (int i = turn + threadIdx.x * turns; i < pieces; i += blockDim.x * turns) {
    const char *at = a.pages + (size_t)table[i / each] * a.page_bytes + i % each * PIECE;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(at), "r"(PIECE) : "memory");
  }
}

// Floats that a warp's sums take in shared memory: 4 and 8 keep neighbours in other banks.
constexpr __host__ __device__ int sums_stride(int tiles) { return tiles * 16 + 4; }
constexpr __host__ __device__ int sums_of_warp(int tiles, int row_tiles) { return row_tiles * 8 * sums_stride(tiles) + 8; }

// 1 / the root of the mean square of each row, into `scales`.  A few lanes take a row, and all that a lane reads is under way
// at once: after the wait each turn of reads costs the latency of L2.
template <int K, int R, int WARPS>
__device__ __forceinline__ void row_scales(const float *squares, int count, float eps, float *scales) {
  constexpr int FIT = WARPS * 32 / R, LANES = FIT >= 32 ? 32 : FIT >= 16 ? 16 : FIT >= 8 ? 8 : 4;
  constexpr int AT_ONCE = LANES == 32 ? 3 : LANES == 16 ? 4 : 6;
  static_assert(R * LANES <= WARPS * 32 && R * LANES % 32 == 0, "whole warps");
  const int row = threadIdx.x / LANES, part = threadIdx.x % LANES;
  if (row >= R) return;
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += AT_ONCE * 4 * LANES) {
    float4 v[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const int at = first + (i * LANES + part) * 4;
      v[i] = at < count ? load_floats(squares + row * count + at) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) sum += v[i].x + v[i].y + (v[i].z + v[i].w);
  }
  sum = lane_sum<LANES>(sum);
  if (part == 0) scales[row] = rsqrtf(sum * (1.f / K) + eps);
}

// ROW_TILES: eighths of the rows.  AT_ONCE: of how many of them the activations are under way together.
template <int K, int ROWS, int TILES, int WARPS, Epilogue EPILOGUE, Hold HOLD, int PACE, int ROW_TILES, int AT_ONCE>
__device__ __forceinline__ void rows_product(const RowsProductArguments &a) {
  constexpr int PARTS = 16 / ROWS, PART = K / PARTS, SLICE = PART / WARPS, STEPS = SLICE / 32, R = 8 * ROW_TILES;
  constexpr int STRIDE = sums_stride(TILES), WARP_BYTES = TILES * 16 * SLICE * 2, THREADS = WARPS * 32;
  constexpr bool NORM = EPILOGUE != Epilogue::residual, SHARED = HOLD == Hold::shared;
  constexpr int OUTPUTS = EPILOGUE == Epilogue::swiglu ? 8 : ROWS, EACH = TILES * OUTPUTS, PAIRS = EACH * R;
  constexpr int LANES = EPILOGUE == Epilogue::residual || PAIRS * 4 <= THREADS ? 4 : PAIRS * 2 <= THREADS ? 2 : 1;
  constexpr int ROUNDS = (PAIRS * LANES + THREADS - 1) / THREADS;  // LANES lanes finish an output of a row
  constexpr int CHAINS = TILES * ROW_TILES * PARTS <= 2 ? 2 : 1;  // sums of one place that do not wait for each other
  static_assert(K % PARTS == 0 && PART % WARPS == 0 && SLICE % 32 == 0 && ROW_TILES % AT_ONCE == 0, "tile");
  static_assert(!SHARED || sums_of_warp(TILES, ROW_TILES) * 4 + 96 <= WARP_BYTES, "sums lie over the warp's weights");
  extern __shared__ __align__(128) char held[];
  __shared__ float scales[R];
  __shared__ __align__(8) unsigned long long barriers[WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  let_next_start();

  // 1. Weights, and all else that is known already.
  const char *weights = (const char *)a.weights + ((size_t)blockIdx.x * WARPS + warp) * WARP_BYTES;
  uint4 w[SHARED ? 1 : STEPS][TILES][2];
  if constexpr (!SHARED) {
    load_weights<PACE>(w, weights, lane);
  } else if (lane == 0) {
    barrier_init(shared_address(&barriers[warp]), 1);
    copy_to_shared(shared_address(held) + warp * WARP_BYTES, weights, WARP_BYTES, shared_address(&barriers[warp]));
  }
  __syncwarp();
  if (a.page_bytes) bring_pages(a);
  auto index_of = [&](int round) { return round * THREADS + (int)threadIdx.x; };
  auto finishes = [&](int index) { return index % LANES == 0 && index < PAIRS * LANES; };
  auto output_of = [&](int index) { return blockIdx.x * EACH + index / LANES % EACH; };
  auto place_of = [&](int index) { return (size_t)(index / LANES / EACH) * a.outputs + output_of(index); };
  const float *extras = EPILOGUE == Epilogue::residual ? a.gain : EPILOGUE == Epilogue::qkv ? a.bias : nullptr;
  float extra[ROUNDS], residual[ROUNDS];
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) extra[i] = extras && finishes(index_of(i)) ? extras[output_of(index_of(i))] : 0.f;
  const bf16 *rows = a.rows + warp * STEPS * 256 + lane * 8;
  const float *residuals = a.residual, *squares = a.squares;
  const int square_count = a.square_count;
  asm volatile("" : "+l"(rows), "+l"(residuals), "+l"(squares));  // read the launch's parameters now, not after the wait
  const char *shared_weights = held + warp * WARP_BYTES + lane * 16;

  // 2. The rows, and 3. the product.
  wait_for_previous();
  float sum[TILES][ROW_TILES][PARTS][CHAINS][4] = {};
#pragma unroll
  for (int first = 0; first < ROW_TILES; first += AT_ONCE) {
    uint4 x[AT_ONCE][PARTS][STEPS];
#pragma unroll
    for (int c = 0; c < AT_ONCE; c++)
#pragma unroll
      for (int q = 0; q < PARTS; q++)
#pragma unroll
        for (int p = 0; p < STEPS; p++) x[c][q][p] = load_activation(rows + ((first + c) * (K / 32) + q * (PART / 32) + p) * 256);
    if (first == 0) {
      if constexpr (EPILOGUE == Epilogue::residual)
#pragma unroll
        for (int i = 0; i < ROUNDS; i++)
          residual[i] = finishes(index_of(i)) ? load_float(residuals + place_of(index_of(i))) : 0.f;
      if constexpr (NORM) row_scales<K, R, WARPS>(squares, square_count, a.eps, scales);
      if constexpr (SHARED) barrier_wait(shared_address(&barriers[warp]));
    }
#pragma unroll
    for (int p = 0; p < STEPS; p++)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        uint4 u, v;
        if constexpr (SHARED) {
          u = *(const uint4 *)(shared_weights + (p * TILES + n) * 1024);
          v = *(const uint4 *)(shared_weights + (p * TILES + n) * 1024 + 512);
        } else {
          u = w[p][n][0];
          v = w[p][n][1];
        }
#pragma unroll
        for (int c = 0; c < AT_ONCE; c++)
#pragma unroll
          for (int q = 0; q < PARTS; q++) {
            multiply_add(sum[n][first + c][q][0], u.x, u.y, u.z, u.w, x[c][q][p].x, x[c][q][p].y);
            multiply_add(sum[n][first + c][q][CHAINS - 1], v.x, v.y, v.z, v.w, x[c][q][p].z, x[c][q][p].w);
          }
      }
  }
  constexpr int SPAN = SHARED ? WARP_BYTES / 4 : sums_of_warp(TILES, ROW_TILES);
  auto sums_at = [&](int of_warp) { return (float *)held + of_warp * SPAN + (SHARED ? (of_warp & 3) * 8 : 0); };
  float *mine = sums_at(warp);
  __syncwarp();  // of a warp's weights in shared memory all have been read
#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int side = 0; side < 2; side++)  // rows g and g + 8 of the tile
#pragma unroll
        for (int e = 0; e < 2; e++) {
          auto of = [&](int q) {
            const float one = sum[n][c][q][0][2 * side + e];
            return CHAINS == 1 ? one : one + sum[n][c][q][CHAINS - 1][2 * side + e];
          };
          float value;
          if constexpr (PARTS == 1) value = of(0);
          else if constexpr (PARTS == 2) value = of(side);
          else value = g < 4 ? of(2 * side) : of(2 * side + 1);
          mine[(8 * c + 2 * t + e) * STRIDE + n * 16 + 8 * side + g] = value;
        }
  __syncthreads();

  // 4. The sum over slices and parts, and what comes after it.
  constexpr int GROUP_LANES = EACH * LANES < 32 ? EACH * LANES : 32;  // of one row
  static_assert(EPILOGUE != Epilogue::residual || EACH * LANES % GROUP_LANES == 0, "a warp finishes whole rows");
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    const int index = index_of(i), pair = index / LANES, quarter = index % LANES;
    if ((index & ~31) >= PAIRS * LANES) break;
    const bool there = pair < PAIRS, ends = finishes(index);
    const int row = there ? pair / EACH : 0, own = pair % EACH, at = row * STRIDE + own / OUTPUTS * 16 + own % OUTPUTS;
    const size_t place = place_of(index);
    float v = 0, u = 0;
#pragma unroll
    for (int j = 0; j < (WARPS + LANES - 1) / LANES; j++) {
      const int slice = j * LANES + quarter;
      if (WARPS % LANES == 0 || slice < WARPS) {
        const float *sums = sums_at(slice) + at;
#pragma unroll
        for (int q = 0; q < PARTS; q++) v += sums[q * ROWS];
        if (EPILOGUE == Epilogue::swiglu) u += sums[8];
      }
    }
#pragma unroll
    for (int offset = LANES / 2; offset; offset >>= 1) {
      v += __shfl_xor_sync(~0u, v, offset);
      if (EPILOGUE == Epilogue::swiglu) u += __shfl_xor_sync(~0u, u, offset);
    }
    if (NORM) { v *= scales[row]; u *= scales[row]; }
    if constexpr (EPILOGUE == Epilogue::qkv) {
      if (ends) ((float *)a.out)[place] = v + extra[i];
    } else if constexpr (EPILOGUE == Epilogue::swiglu) {
      if (ends) ((bf16 *)a.out)[tiled(row, output_of(index), a.outputs)] = __float2bfloat16(__fdividef(v, 1.f + __expf(-v)) * u);
    } else {
      v += residual[i];
      if (ends) {
        ((float *)a.out)[place] = v;
        a.next[tiled(row, output_of(index), a.outputs)] = __float2bfloat16(v * extra[i]);
      }
      const float squared = lane_sum<GROUP_LANES>(ends ? v * v : 0.f);
      constexpr int PARTS_OF_ROW = EACH * LANES / GROUP_LANES;
      if (lane % GROUP_LANES == 0 && there)
        a.next_squares[((size_t)row * gridDim.x + blockIdx.x) * PARTS_OF_ROW + own / 8] = squared;
    }
  }
}
