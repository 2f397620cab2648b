// Kernels on rows of float32: RMSNorm, and SwiGLU of two arrays.  Any width; 16 bytes at a time where all is aligned.
#pragma once
#include "plain_types.cuh"

constexpr int NORM_THREADS = 256, GATE_THREADS = 256;

struct NormArguments {
  const float *x, *weight;
  void *out;  // float32, or the 16 bits that a product reads
  int width;
  float eps;
};

// The sum over a block of THREADS threads, for all of them.
template <int THREADS> __device__ __forceinline__ float block_sum(float value) {
  __shared__ float sums[THREADS / 32];
  value = warp_sum<32>(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) value += sums[i];
  return value;
}

__device__ __forceinline__ bool aligned(const void *pointer) { return (size_t)pointer % 16 == 0; }

__device__ __forceinline__ void store_four(f32 *at, float4 v) { *(float4 *)at = v; }
template <typename T> __device__ __forceinline__ void store_four(T *at, float4 v) {
  __align__(8) const T made[4] = {rounded<T>(v.x), rounded<T>(v.y), rounded<T>(v.z), rounded<T>(v.w)};
  *(uint2 *)at = *(const uint2 *)made;
}

// A block a row: out = x / sqrt(mean(x^2) + eps) * weight.  Zhang and Sennrich 2019, arXiv:1910.07467.
template <typename T> __device__ __forceinline__ void norm_row(const NormArguments &a) {
  const float *x = a.x + (size_t)blockIdx.x * a.width;
  T *out = (T *)a.out + (size_t)blockIdx.x * a.width;
  // Each row begins at a multiple of the width, so that has to be whole too.
  const int fours = a.width % 4 == 0 && aligned(a.x) && aligned(a.weight) && aligned(a.out) ? a.width / 4 : 0;
  float squares = 0;
  for (int i = threadIdx.x; i < fours; i += NORM_THREADS) {
    const float4 v = ((const float4 *)x)[i];
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  for (int i = 4 * fours + threadIdx.x; i < a.width; i += NORM_THREADS) squares += x[i] * x[i];
  const float scale = 1.f / sqrtf(block_sum<NORM_THREADS>(squares) / a.width + a.eps);
  for (int i = threadIdx.x; i < fours; i += NORM_THREADS) {
    const float4 v = ((const float4 *)x)[i], w = ((const float4 *)a.weight)[i];
    store_four(out + 4 * i, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
  }
  for (int i = 4 * fours + threadIdx.x; i < a.width; i += NORM_THREADS) out[i] = rounded<T>(x[i] * scale * a.weight[i]);
}

struct GateArguments {
  const float *gate, *up;
  float *out;
  long long count;
};

// out = gate / (1 + exp(-gate)) * up; out may be either.  Shazeer 2020, arXiv:2002.05202.
__device__ __forceinline__ void gate_values(const GateArguments &a) {
  const long long step = (long long)gridDim.x * GATE_THREADS, first = (long long)blockIdx.x * GATE_THREADS + threadIdx.x;
  const long long fours = aligned(a.gate) && aligned(a.up) && aligned(a.out) ? a.count / 4 : 0;
  for (long long i = first; i < fours; i += step) {
    const float4 g = ((const float4 *)a.gate)[i], u = ((const float4 *)a.up)[i];
    ((float4 *)a.out)[i] = make_float4(silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z, silu(g.w) * u.w);
  }
  for (long long i = 4 * fours + first; i < a.count; i += step) a.out[i] = silu(a.gate[i]) * a.up[i];
}
