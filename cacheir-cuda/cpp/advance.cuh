// The step to the next token, of the largest logits that the head's blocks found (stream.cuh).
#pragma once
#include "largest.cuh"
#include "stops.cuh"

struct AdvanceArguments {
  const float *best;      // of each block of the head, infinite where a logit is not finite
  const int *best_id;
  const bf16 *embedding;  // [vocabulary][H]
  const float *gain;      // [H], of the first layer's norm
  float *row;             // [H]: the next residual row
  bf16 *next;             // [2][H]: row times gain
  float *squares;         // [square_count]: the whole sum in the first, zeros behind it
  int *ring;              // on the host: the tokens of this run
  State *state;
  Stops *stops;
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
  Ending ending;
  if (thread == 0) ending.read(a.stops);
  wait_for_previous();
  NOTE_TIME(2);
  const int id = token_of_largest<WARPS>(a.best, a.best_id, a.blocks, values, ids);
  if (thread == 0) {
    if (a.blocks) *(volatile int *)(a.ring + produced) = ending.told(a.stops, id);
    chosen = max(a.blocks ? id : given, 0);  // a prompt's token, which the host has not seen, may be none
    if (a.steps) {
      if (!ending.over) a.state->position += a.steps;
      a.state->produced += a.steps;
    }
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
