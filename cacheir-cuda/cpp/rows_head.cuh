// The ends of a step of several rows: embedding, the head with each row's largest logit, the step to the next tokens.
#pragma once
#include "device.cuh"
#include "largest.cuh"
#include "rows_product.cuh"
#include "stops.cuh"

struct RowsBeginArguments {
  const int *tokens;      // [R]
  const bf16 *embedding;  // [vocabulary][H]
  const float *gain;      // [H], of the first layer's norm
  float *hidden;          // [R][H]: the residual rows
  bf16 *next;             // [R][H], tiled: hidden times gain
  float *squares;         // [R][square_count]: the whole sum in the first, zeros behind it
  int vocabulary, width, square_count;
};

constexpr int BEGIN_WARPS = 8;

// A block for each row.  A token of -1 is that of a row that failed.
__device__ __forceinline__ void begin_row(const RowsBeginArguments &a, int row, int token) {
  __shared__ float values[BEGIN_WARPS];
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
  const bf16 *from = a.embedding + (size_t)min(max(token, 0), a.vocabulary - 1) * a.width;
  float squares = 0;
  for (int i = 2 * thread; i < a.width; i += BEGIN_WARPS * 64) {
    const u32 both = *(const u32 *)(from + i);
    const float2 gain = *(const float2 *)(a.gain + i);
    const float x = low_half(both), y = high_half(both);
    *(float2 *)(a.hidden + (size_t)row * a.width + i) = make_float2(x, y);
    *(u32 *)(a.next + tiled(row, i, a.width)) = pack(x * gain.x, y * gain.y);
    squares += x * x + y * y;
  }
  squares = lane_sum<32>(squares);
  if (lane == 0) values[warp] = squares;
  __syncthreads();
  if (warp == 0) squares = lane_sum<32>(lane < BEGIN_WARPS ? values[lane] : 0.f);
  for (int i = thread; i < a.square_count; i += BEGIN_WARPS * 32) a.squares[row * a.square_count + i] = i ? 0.f : squares;
}
__device__ __forceinline__ void begin_rows(const RowsBeginArguments &a) {
  let_next_start();
  wait_for_previous();
  begin_row(a, blockIdx.x, a.tokens[blockIdx.x]);
}

struct RowsHeadArguments {
  const bf16 *weights;   // [vocabulary][H], as stored
  const bf16 *rows;      // [R][H], tiled, times the final norm's weights
  const float *squares;  // [R][square_count], before them
  float *best;           // [R][blocks]: largest logit of each block, infinite where one is not finite
  int *best_id;
  int vocabulary, square_count;
  float eps;
};

constexpr int ROWS_HEAD_WARPS = 18;  // 18 on each of 132 multiprocessors take 151,936 tokens in four turns

// The largest logits that a lane has seen of its rows, 8 c + 2 t + e, with their tokens.
template <int ROW_TILES, int WARPS> struct Candidates {
  float best[ROW_TILES][2], scale[ROW_TILES][2];
  int id[ROW_TILES][2];

  __device__ __forceinline__ void begin(const float *scales) {
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        best[c][e] = -INFINITY;
        id[c][e] = 0x7fffffff;
        scale[c][e] = scales[8 * c + 2 * (threadIdx.x & 3) + e];
      }
  }
  // The products of 16 tokens from `first` on.
  __device__ __forceinline__ void take(const float (&sum)[ROW_TILES][4], int first) {
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int side = 0; side < 2; side++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float logit = sum[c][2 * side + e] * scale[c][e];
          if (logit > best[c][e]) { best[c][e] = logit; id[c][e] = first + 8 * side + ((threadIdx.x & 31) >> 2); }
          if (!(logit < INFINITY)) { best[c][e] = INFINITY; id[c][e] = NO_TOKEN; }
        }
  }
  // The block's, to the places of each row.
  __device__ __forceinline__ void leave(const RowsHeadArguments &a) {
    constexpr int R = 8 * ROW_TILES;
    __shared__ float bests[WARPS][R];
    __shared__ int ids[WARPS][R];
    const int warp = threadIdx.x >> 5, t = threadIdx.x & 3, g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int offset = 4; offset <= 16; offset *= 2) {
          const float v = __shfl_xor_sync(~0u, best[c][e], offset);
          const int other = __shfl_xor_sync(~0u, id[c][e], offset);
          if (v > best[c][e] || (v == best[c][e] && other < id[c][e])) { best[c][e] = v; id[c][e] = other; }
        }
        if (g == 0) { bests[warp][8 * c + 2 * t + e] = best[c][e]; ids[warp][8 * c + 2 * t + e] = id[c][e]; }
      }
    __syncthreads();
    if (threadIdx.x < R) {
      float top = bests[0][threadIdx.x];
      int first = ids[0][threadIdx.x];
      for (int i = 1; i < WARPS; i++) {
        const float v = bests[i][threadIdx.x];
        const int other = ids[i][threadIdx.x];
        if (v > top || (v == top && other < first)) { top = v; first = other; }
      }
      a.best[threadIdx.x * gridDim.x + blockIdx.x] = top;
      a.best_id[threadIdx.x * gridDim.x + blockIdx.x] = first;
    }
  }
};

// A warp takes 16 rows of the matrix at a time; they are the one operand as they lie, in the order of k of product.cuh.  They
// stream through a ring in shared memory as in stream.cuh: a warp asks for whole lines, 4 rows by 64 columns at a time (of half
// lines memory gave 2 to 4 % less), so that lanes read what others asked for.
template <int H, int ROW_TILES, int STAGES> __device__ __forceinline__ void rows_head(const RowsHeadArguments &a) {
  constexpr int R = 8 * ROW_TILES, STEPS = H / 32, PAIRS = H / 64, SLOTS = STAGES / 2;
  static_assert(H % 64 == 0 && STAGES % 2 == 0, "width");
  extern __shared__ __align__(128) char held[];  // the rows, then [ROWS_HEAD_WARPS][SLOTS][16][128]
  __shared__ float scales[R];
  bf16 *x = (bf16 *)held;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int stride = gridDim.x * ROWS_HEAD_WARPS, tiles = a.vocabulary / 16;
  let_next_start();
  int tile = blockIdx.x * ROWS_HEAD_WARPS + warp;
  // The halves of a line change places in every other row, so that the lanes of a quarter of a warp read from other banks.
  const char *ring = held + R * H * 2 + warp * STAGES * 1024;
  const u32 target = shared_address(ring) + (lane >> 3) * 128 + ((lane & 7) ^ (lane >> 3 & 1) << 2) * 16;
  const char *source = (const char *)(a.weights + ((size_t)tile * 16 + (lane >> 3)) * H + 8 * (lane & 7));
  const char *first = ring + g * 128 + (t ^ (g & 1) << 2) * 16, *second = ring + g * 128 + (4 + t ^ (g & 1) << 2) * 16;
  int left = tile < tiles ? (tiles - tile + stride - 1) / stride * PAIRS : 0, ahead = 0;
  auto ask = [&](int slot) {
    if (left > 0) {
#pragma unroll
      for (int i = 0; i < 4; i++) copy_piece(target + slot * 2048 + i * 512, source + i * 8 * H + ahead * 128);
      left--;
      if (++ahead == PAIRS) { ahead = 0; source += (size_t)stride * 32 * H; }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Not unrolled: of places that are known nvcc 13.0 makes an instruction (a uniform register and a cache policy) that traps.
#pragma unroll 1
  for (int slot = 0; slot < SLOTS; slot++) ask(slot);
  wait_for_previous();
#pragma unroll 4
  for (int i = threadIdx.x; i < R * H / 8; i += ROWS_HEAD_WARPS * 32) *(uint4 *)(x + i * 8) = load_activation(a.rows + i * 8);
  row_scales<H, R, ROWS_HEAD_WARPS>(a.squares, a.square_count, a.eps, scales);
  __syncthreads();
  Candidates<ROW_TILES, ROWS_HEAD_WARPS> candidates;
  candidates.begin(scales);
  int slot = 0;
  for (; tile < tiles; tile += stride) {
    float sum[ROW_TILES][4] = {};
#pragma unroll 1
    for (int p = 0; p < PAIRS; p++) {
      asm volatile("cp.async.wait_group %0;" :: "n"(SLOTS - 1) : "memory");
      __syncwarp();  // the others' copies are there too
      uint4 u[2], v[2];
      u[0] = *(const uint4 *)(first + slot * 2048), v[0] = *(const uint4 *)(first + slot * 2048 + 1024);
      u[1] = *(const uint4 *)(second + slot * 2048), v[1] = *(const uint4 *)(second + slot * 2048 + 1024);
#pragma unroll
      for (int s = 0; s < 2; s++)
#pragma unroll
        for (int c = 0; c < ROW_TILES; c++) {
          const uint4 y = *(const uint4 *)(x + (c * STEPS + 2 * p + s) * 256 + lane * 8);
          multiply_add(sum[c], u[s].x, v[s].x, u[s].y, v[s].y, y.x, y.y);
          multiply_add(sum[c], u[s].z, v[s].z, u[s].w, v[s].w, y.z, y.w);
        }
      __syncwarp();  // they have been read
      ask(slot);
      if (++slot == SLOTS) slot = 0;
    }
    candidates.take(sum, tile * 16);
  }
  candidates.leave(a);
}

struct RowsAdvanceArguments {
  RowsBeginArguments begin;  // of the next step; its tokens are written here
  const float *best;         // [R][blocks]
  const int *best_id;
  int *tokens;               // [R]
  int *ring;                 // on the host: [steps][row_count] tokens of this run
  int *positions, *slots;    // [R]: moved on in the last step of a graph, but not of a row whose answer is over
  int *produced;             // [R]: steps of this run that are over
  Stops *stops;              // [R]; null where no step follows, or none of the rows ends
  const int *page_table;     // [R][table_width]
  int blocks, row_count, page_tokens, table_width, step;
  int steps;                 // of the graph, in its last step; 0 before
};

__device__ __forceinline__ void advance_rows(const RowsAdvanceArguments &a) {
  __shared__ float values[BEGIN_WARPS];
  __shared__ int ids[BEGIN_WARPS];
  __shared__ int chosen;
  const int thread = threadIdx.x, row = blockIdx.x;
  let_next_start();
  const int produced = a.produced[row] + a.step;
  Ending ending;
  if (a.stops && thread == 0) ending.read(a.stops + row);
  wait_for_previous();
  const size_t first = (size_t)row * a.blocks;
  const int id = token_of_largest<BEGIN_WARPS>(a.best + first, a.best_id + first, a.blocks, values, ids);
  if (thread == 0) {
    *(volatile int *)(a.ring + (size_t)produced * a.row_count + row) = a.stops ? ending.told(a.stops + row, id) : id;
    a.tokens[row] = id;
    chosen = id;
    if (a.steps) a.produced[row] = produced + 1;
    if (a.stops && ending.over) {
      a.slots[row] = -1;  // what it feeds from now on is kept nowhere
    } else if (a.steps) {
      const int position = a.positions[row] + a.steps;
      a.positions[row] = position;
      const int page = a.page_table[(size_t)row * a.table_width + min(position / a.page_tokens, a.table_width - 1)];
      if (a.slots[row] >= 0) a.slots[row] = page * a.page_tokens + position % a.page_tokens;
    }
  }
  __syncthreads();
  begin_row(a.begin, row, chosen);
}
