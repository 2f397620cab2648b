// The head: final norm, projection to the vocabulary and the largest logit, then the step to the next token.
#pragma once
#include "device.cuh"

constexpr int HEAD_WARPS = 8, NO_TOKEN = -1;

struct HeadArguments {
  const bf16 *weights;  // [vocabulary][H], as stored
  const float *row;     // [H]
  const float *gain;    // [H], of the final norm
  float *best;          // largest logit of each block, infinite where one is not finite
  int *best_id;
  int vocabulary;
  float eps;
  TRACE_FIELD
};

template <int H, int ROWS> __device__ __forceinline__ void head(const HeadArguments &a) {
  constexpr int PIECES = H / 256;  // 16-byte pieces of a row that a lane takes
  static_assert(H % 256 == 0, "width");
  __shared__ float bests[HEAD_WARPS];
  __shared__ int ids[HEAD_WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int stride = gridDim.x * HEAD_WARPS, tiles = a.vocabulary / ROWS;
  NOTE_TIME(0);
  let_next_start();
  uint4 w[ROWS][PIECES];
  auto load = [&](int tile) {
    const bf16 *at = a.weights + (size_t)tile * ROWS * H + lane * 8;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < PIECES; j++) w[r][j] = load_weight(at + r * H + j * 256);
  };
  int tile = blockIdx.x * HEAD_WARPS + warp;
  if (tile < tiles) load(tile);
  wait_for_previous();
  NOTE_TIME(2);
  float x[PIECES][8], squares = 0;
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
    const float4 u = load_floats(a.row + j * 256 + lane * 8), v = load_floats(a.row + j * 256 + lane * 8 + 4);
    x[j][0] = u.x; x[j][1] = u.y; x[j][2] = u.z; x[j][3] = u.w; x[j][4] = v.x; x[j][5] = v.y; x[j][6] = v.z; x[j][7] = v.w;
#pragma unroll
    for (int e = 0; e < 8; e++) squares += x[j][e] * x[j][e];
  }
  const float scale = rsqrtf(lane_sum<32>(squares) * (1.f / H) + a.eps);
#pragma unroll
  for (int j = 0; j < PIECES; j++)
#pragma unroll
    for (int e = 0; e < 8; e++) x[j][e] *= scale * a.gain[j * 256 + lane * 8 + e];
  float best = -INFINITY;
  int id = 0x7fffffff;
  for (; tile < tiles; tile += stride) {
    float logit[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      logit[r] = 0;
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        const uint4 v = w[r][j];
        logit[r] += low_half(v.x) * x[j][0] + high_half(v.x) * x[j][1] + low_half(v.y) * x[j][2] + high_half(v.y) * x[j][3]
                  + low_half(v.z) * x[j][4] + high_half(v.z) * x[j][5] + low_half(v.w) * x[j][6] + high_half(v.w) * x[j][7];
      }
    }
    if (tile + stride < tiles) load(tile + stride);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float v = lane_sum<32>(logit[r]);
      if (v > best) { best = v; id = tile * ROWS + r; }
      if (!(v < INFINITY)) { best = INFINITY; id = NO_TOKEN; }
    }
  }
  if (lane == 0) { bests[warp] = best; ids[warp] = id; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < HEAD_WARPS; i++)
      if (bests[i] > best || (bests[i] == best && ids[i] < id)) { best = bests[i]; id = ids[i]; }
    a.best[blockIdx.x] = best;
    a.best_id[blockIdx.x] = id;
  }
  NOTE_TIME(5);
}

struct AdvanceArguments {
  const float *best;      // of each block of the head
  const int *best_id;
  const bf16 *embedding;  // [vocabulary][H]
  const float *gain;      // [H], of the first layer's norm
  float *row;             // [H]: the next residual row
  bf16 *next;             // [2][H]: row times gain
  float *squares;         // [square_count]: the whole sum in the first, zeros behind it
  int *ring;              // on the host: the tokens of this run
  State *state;
  int blocks;             // of the head; 0 begins a run with the state's token
  int width, square_count, step;
  int steps;              // of the graph, in its last step; 0 before
  TRACE_FIELD
};

__device__ __forceinline__ void advance(const AdvanceArguments &a) {
  constexpr int WARPS = 8;
  __shared__ float values[WARPS];
  __shared__ int ids[WARPS];
  __shared__ int chosen;
  const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
  NOTE_TIME(0);
  let_next_start();
  const int produced = a.state->produced + a.step, given = a.state->token;
  wait_for_previous();
  NOTE_TIME(2);
  float best = -INFINITY;
  int id = 0x7fffffff;
  for (int i = thread; i < a.blocks; i += WARPS * 32) {
    const float v = __ldcg(a.best + i);
    const int other = __ldcg(a.best_id + i);
    if (v > best || (v == best && other < id)) { best = v; id = other; }
  }
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const int other = __shfl_xor_sync(~0u, id, offset);
    if (v > best || (v == best && other < id)) { best = v; id = other; }
  }
  if (lane == 0) { values[warp] = best; ids[warp] = id; }
  __syncthreads();
  if (thread == 0) {
    for (int i = 1; i < WARPS; i++)
      if (values[i] > best || (values[i] == best && ids[i] < id)) { best = values[i]; id = ids[i]; }
    if (best == -INFINITY) id = NO_TOKEN;
    if (a.blocks) *(volatile int *)(a.ring + produced) = id;
    chosen = a.blocks ? max(id, 0) : given;
    if (a.steps) { a.state->position += a.steps; a.state->produced += a.steps; }
  }
  __syncthreads();
  const bf16 *from = a.embedding + (size_t)chosen * a.width;
  float squares = 0;
  for (int i = thread; i < a.width; i += WARPS * 32) {
    const float value = __bfloat162float(from[i]);
    a.row[i] = value;
    store_split(a.next, i, a.width, value * a.gain[i]);
    squares += value * value;
  }
  squares = lane_sum<32>(squares);
  if (lane == 0) values[warp] = squares;
  __syncthreads();
  if (warp == 0) squares = lane_sum<32>(lane < WARPS ? values[lane] : 0.f);
  for (int i = thread; i < a.square_count; i += WARPS * 32) a.squares[i] = i ? 0.f : squares;
  NOTE_TIME(5);
}
