// What the kernels of single ops share: names of element types, and small sums.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef float f32;
typedef half f16;
typedef __nv_bfloat16 bf16;

// The sum over LANES neighbouring lanes, for all of them.
template <int LANES> __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = LANES / 2; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }

template <typename T> __device__ __forceinline__ T rounded(float x);
template <> __device__ __forceinline__ f32 rounded<f32>(float x) { return x; }
template <> __device__ __forceinline__ f16 rounded<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 rounded<bf16>(float x) { return __float2bfloat16_rn(x); }

// Eight neighbouring elements as they are read, 16 bytes aligned, and as float32.
template <typename T> struct Eight {
  uint4 bits;
  __device__ __forceinline__ void load(const T *at) { bits = *(const uint4 *)at; }
  __device__ __forceinline__ void zero() { bits = make_uint4(0, 0, 0, 0); }
  __device__ __forceinline__ void floats(float (&out)[8]) const {
    const T *each = (const T *)&bits;
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = (float)each[i];
  }
};
template <> struct Eight<f32> {
  float4 low, high;
  __device__ __forceinline__ void load(const f32 *at) { low = ((const float4 *)at)[0]; high = ((const float4 *)at)[1]; }
  __device__ __forceinline__ void zero() { low = high = make_float4(0, 0, 0, 0); }
  __device__ __forceinline__ void floats(float (&out)[8]) const {
    out[0] = low.x; out[1] = low.y; out[2] = low.z; out[3] = low.w;
    out[4] = high.x; out[5] = high.y; out[6] = high.z; out[7] = high.w;
  }
};
