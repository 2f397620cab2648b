// A matrix times one row, with what comes before and after it: the norm's scale, bias, residual, SwiGLU.
//
// Weights are the 16 x 16 operand of the tensor cores' product, packed beforehand in the order of its fragments
// (cacheir_cuda/chain/packing.py), and the activations are columns of the other operand: column 2 p holds the upper
// half of the row's part p and column 2 p + 1 the rest.  The sum over k may be taken in any order, so lane t of a quad
// takes 8 consecutive k (16 bytes) for two products.
//
// A block owns TILES tiles of 16 rows and has WARPS warps; a warp takes one slice of k of all tiles, so the block reads
// every activation once.  ROWS below 16: a tile is ROWS rows, whose k is cut in 16 / ROWS parts that lie below each
// other.  HOLD says where the weights wait for the row: in registers or in shared memory.
#pragma once
#include "device.cuh"

enum class Epilogue { qkv, residual, swiglu, head };  // head: stream.cuh alone
enum class Hold { registers, shared };

struct ProductArguments {
  const bf16 *weights;   // packed
  const bf16 *row;       // [2][K]: upper halves, then the rests
  const float *squares;  // [square_count]: parts of the sum of squares of the row before its norm's weights (qkv, swiglu)
  const float *bias;     // [N] or null (qkv)
  const float *residual; // [N] (residual)
  const float *gain;     // [N]: weights of the norm that comes next (residual)
  void *out;             // qkv, residual: f32 [N]; swiglu: bf16 [2][N / 2]
  bf16 *next;            // [2][N]: out times gain (residual)
  float *next_squares;   // one part for each warp that finishes outputs (residual)
  int square_count;
  int outputs;           // N, of swiglu N / 2
  float eps;
  // qkv: the pages that the attention after it reads are brought into the L2 cache ahead of it.
  int step, page_bytes;      // page_bytes: of one page of this layer; 0: none are brought
  const char *pages;
  const int *page_table;
  const State *state;
  int page_tokens;
  int tiles;  // of the whole matrix (stream.cuh)
  int *out_id;  // [blocks] (head, whose out is f32 [blocks])
  TRACE_FIELD
};

__device__ __forceinline__ void bring_pages(const ProductArguments &a) {
  constexpr int LINE = 128;
  const int each = a.page_bytes / LINE, lines = ((a.state->position + a.step - 1) / a.page_tokens + 1) * each;
  for (int line = threadIdx.x * gridDim.x + blockIdx.x; line < lines; line += gridDim.x * blockDim.x) {
    const char *at = a.pages + (size_t)a.page_table[line / each] * a.page_bytes + line % each * LINE;
    asm volatile("prefetch.global.L2 [%0];" :: "l"(at));
  }
}

// Asks for a warp's weights.  Those that are asked for all at once stand in the way of the row that a kernel before this one
// waits for: PACE is how many loads a thread has under way, 0 for all.
template <int PACE, int STEPS, int TILES>
__device__ __forceinline__ void load_weights(uint4 (&w)[STEPS][TILES][2], const char *weights, int lane) {
#pragma unroll
  for (int p = 0; p < STEPS; p++)
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      const int pair = p * TILES + n;
      if (PACE && pair && pair % (PACE / 2 + !PACE) == 0) await_load(w[(pair - 1) / TILES][(pair - 1) % TILES][1].w);
      w[p][n][0] = load_weight(weights + ((pair * 2) * 32 + lane) * 16);
      w[p][n][1] = load_weight(weights + ((pair * 2 + 1) * 32 + lane) * 16);
    }
}

// One output over the WARPS slices and the parts of k, by four lanes: x, and y of the row beside it (swiglu), times the norm's
// scale where there is one.  ``at`` is its place in a slice's sums, ``quarter`` which of the four lanes this is.
template <int K, int ROWS, Epilogue EPILOGUE, int WARPS, int STRIDE>
__device__ __forceinline__ float2 sum_slices(const float (&sums)[WARPS][STRIDE], const float (&square_sums)[WARPS], int at,
                                             int quarter, float eps) {
  constexpr bool NORM = EPILOGUE != Epilogue::residual;
  float v = 0, u = 0, total = 0;
#pragma unroll
  for (int i = 0; i < (WARPS + 3) / 4; i++) {
    const int part = i * 4 + quarter;
    if (WARPS % 4 == 0 || part < WARPS) {
#pragma unroll
      for (int r = 0; r < 16 / ROWS; r++) v += sums[part][at + r * ROWS];
      if (EPILOGUE == Epilogue::swiglu) u += sums[part][at + 8];
      if (NORM) total += square_sums[part];
    }
  }
  v += __shfl_xor_sync(~0u, v, 1); v += __shfl_xor_sync(~0u, v, 2);
  if (EPILOGUE == Epilogue::swiglu) { u += __shfl_xor_sync(~0u, u, 1); u += __shfl_xor_sync(~0u, u, 2); }
  if (NORM) {
    total += __shfl_xor_sync(~0u, total, 1); total += __shfl_xor_sync(~0u, total, 2);
    const float scale = rsqrtf(total * (1.f / K) + eps);
    v *= scale; u *= scale;
  }
  return make_float2(v, u);
}

template <int K, int ROWS, int TILES, int WARPS, Epilogue EPILOGUE, Hold HOLD, int PACE = 0>
__device__ __forceinline__ void product(const ProductArguments &a) {
  constexpr int PARTS = 16 / ROWS, COLUMNS = 2 * PARTS, PART = K / PARTS, SLICE = PART / WARPS, STEPS = SLICE / 32;
  constexpr int STRIDE = TILES * 16 + 8, WARP_BYTES = TILES * 16 * SLICE * 2;
  constexpr bool NORM = EPILOGUE != Epilogue::residual;
  constexpr int OUTPUTS = EPILOGUE == Epilogue::swiglu ? 8 : ROWS;  // of a tile; four lanes finish one
  static_assert(K % PARTS == 0 && PART % WARPS == 0 && SLICE % 32 == 0 && TILES * OUTPUTS <= WARPS * 8, "tile");
  extern __shared__ __align__(128) char held[];
  __shared__ float sums[WARPS][STRIDE];
  __shared__ float square_sums[WARPS];
  __shared__ __align__(8) unsigned long long barriers[WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  NOTE_TIME(0);
  let_next_start();

  // 1. Weights, and all else that is known already.
  const char *weights = (const char *)a.weights + ((size_t)blockIdx.x * WARPS + warp) * WARP_BYTES;
  uint4 w[HOLD == Hold::registers ? STEPS : 1][TILES][2];
  if constexpr (HOLD == Hold::registers) {
    load_weights<PACE>(w, weights, lane);
  } else if (lane == 0) {
    barrier_init(shared_address(&barriers[warp]), 1);
    copy_to_shared(shared_address(held) + warp * WARP_BYTES, weights, WARP_BYTES, shared_address(&barriers[warp]));
  }
  __syncwarp();
  if (EPILOGUE == Epilogue::qkv && a.page_bytes) bring_pages(a);
  const int own = threadIdx.x >> 2, quarter = threadIdx.x & 3, output = blockIdx.x * TILES * OUTPUTS + own;
  const bool finishes = quarter == 0 && own < TILES * OUTPUTS;
  float bias = 0, gain = 0;
  if (EPILOGUE == Epilogue::qkv && a.bias && finishes) bias = a.bias[output];
  if (EPILOGUE == Epilogue::residual && finishes) gain = a.gain[output];
  const bf16 *row = a.row + (g & 1) * K + (g >> 1) * PART + warp * SLICE + 8 * t;
  const float *residuals = a.residual, *squares = a.squares;
  const int square_count = a.square_count;
  asm volatile("" : "+l"(row), "+l"(residuals), "+l"(squares));  // read the launch's parameters now, not after the wait
  const char *shared_weights = held + warp * WARP_BYTES + lane * 16;

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
  float residual = 0, square = 0;
  if (EPILOGUE == Epilogue::residual && finishes) residual = load_float(residuals + output);
  if (NORM)
    for (int i = threadIdx.x; i < square_count; i += WARPS * 32) square += load_float(squares + i);

  NOTE_TIME(3, x[STEPS - 1].x);

  // 3. The product.
  float sum[TILES][2][4] = {};
  if constexpr (HOLD == Hold::registers) {
#pragma unroll
    for (int p = 0; p < STEPS; p++)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const uint4 u = w[p][n][0], v = w[p][n][1];
        multiply_add(sum[n][0], u.x, u.y, u.z, u.w, x[p].x, x[p].y);
        multiply_add(sum[n][1], v.x, v.y, v.z, v.w, x[p].z, x[p].w);
      }
  } else {
    barrier_wait(shared_address(&barriers[warp]));
#pragma unroll
    for (int p = 0; p < STEPS; p++)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const uint4 u = *(const uint4 *)(shared_weights + (p * TILES + n) * 1024);
        const uint4 v = *(const uint4 *)(shared_weights + (p * TILES + n) * 1024 + 512);
        multiply_add(sum[n][0], u.x, u.y, u.z, u.w, x[p].x, x[p].y);
        multiply_add(sum[n][1], v.x, v.y, v.z, v.w, x[p].z, x[p].w);
      }
  }
  if (NORM) {
    square = lane_sum<32>(square);
    if (lane == 0) square_sums[warp] = square;
  }
#pragma unroll
  for (int n = 0; n < TILES; n++) {  // row r of the tile is of part r / ROWS, whose columns lane t == r / ROWS holds
    if (t == g / ROWS) sums[warp][n * 16 + g] = (sum[n][0][0] + sum[n][1][0]) + (sum[n][0][1] + sum[n][1][1]);
    if (t == (g + 8) / ROWS) sums[warp][n * 16 + g + 8] = (sum[n][0][2] + sum[n][1][2]) + (sum[n][0][3] + sum[n][1][3]);
  }
  __syncthreads();
  NOTE_TIME(4);

  // 4. The sum over slices and parts, and what comes after it.
  if ((own & ~7) >= TILES * OUTPUTS) return;
  const int at = own < TILES * OUTPUTS ? own / OUTPUTS * 16 + own % OUTPUTS : 0;
  const float2 found = sum_slices<K, ROWS, EPILOGUE>(sums, square_sums, at, quarter, a.eps);
  float v = found.x;
  const float u = found.y;
  if constexpr (EPILOGUE == Epilogue::qkv) {
    if (finishes) ((float *)a.out)[output] = v + bias;
  } else if constexpr (EPILOGUE == Epilogue::swiglu) {
    if (finishes) store_split((bf16 *)a.out, output, a.outputs, __fdividef(v, 1.f + __expf(-v)) * u);
  } else {
    v += residual;
    if (finishes) {
      ((float *)a.out)[output] = v;
      store_split(a.next, output, a.outputs, v * gain);
    }
    const float squared = lane_sum<32>(finishes ? v * v : 0.f);
    constexpr int WARPS_FINISH = (TILES * OUTPUTS + 7) / 8;
    if (lane == 0) a.next_squares[blockIdx.x * WARPS_FINISH + warp] = squared;
  }
  NOTE_TIME(5);
}
