// A head of a row as a warp has it: added from QKV's parts, normed and turned.
#pragma once
#include "attention.cuh"

struct Turned { float2 low, high; };  // dimensions 2 lane, 2 lane + 1 of a head, and 64 further on

// Dimensions of one head, normed and turned by a warp.
template <bool NORMED>
__device__ __forceinline__ Turned turned(Turned x, float4 turn, const float2 (&gain)[2], float eps) {
  if (NORMED) {
    const float squares = lane_sum<32>(x.low.x * x.low.x + x.low.y * x.low.y + x.high.x * x.high.x + x.high.y * x.high.y);
    const float scale = rsqrtf(squares * (1.f / HEAD) + eps);
    x.low.x *= scale * gain[0].x; x.low.y *= scale * gain[0].y; x.high.x *= scale * gain[1].x; x.high.y *= scale * gain[1].y;
  }
  return {make_float2(x.low.x * turn.x - x.high.x * turn.y, x.low.y * turn.z - x.high.y * turn.w),
          make_float2(x.high.x * turn.x + x.low.x * turn.y, x.high.y * turn.z + x.low.y * turn.w)};
}
// Dimensions of a head of QKV in parts; `squares` is this lane's place among those of the row, `per` 1 / its width.
template <int PARTS, int OUTPUTS>
__device__ __forceinline__ Turned load_parts(const float *source, const float *squares, int square_count, float per, float eps, Turned bias) {
  Turned x = bias, part[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; i++) part[i] = {load_pair(source + i * OUTPUTS), load_pair(source + i * OUTPUTS + 64)};
  float sum = 0;
#pragma unroll 1
  for (int i = 4 * (threadIdx.x & 31); i < square_count; i += 128) {
    const float4 v = load_floats(squares + i);
    sum += (v.x + v.y) + (v.z + v.w);
  }
#pragma unroll
  for (int i = 1; i < PARTS; i++) {
    part[0].low.x += part[i].low.x; part[0].low.y += part[i].low.y;
    part[0].high.x += part[i].high.x; part[0].high.y += part[i].high.y;
  }
  const float scale = rsqrtf(lane_sum<32>(sum) * per + eps);
  x.low.x += part[0].low.x * scale; x.low.y += part[0].low.y * scale;
  x.high.x += part[0].high.x * scale; x.high.y += part[0].high.y * scale;
  return x;
}
