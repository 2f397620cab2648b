// Products of 16-bit matrices on tensor cores through WMMA, which compute capabilities 8.0 and 9.0 both have.
//
// out [rows, .] = x [rows, width] times the rows of a matrix [., width], sums in float32.  Any number of rows on either
// side; `width` is a multiple of 8, since 16 bytes are copied at once.  What differs between the ops is how x is read, to
// which row of the matrix column n of the product belongs, and what becomes of neighbouring columns 2 i and 2 i + 1:
//   Plain   n itself; stored
//   Gated   row i of gate and row i of up; silu(gate) * up
//   Turned  the two elements of a head that are turned together (RoPE); with NORMED x is float32 and normed by row here
#pragma once
#include <cuda_pipeline.h>
#include <mma.h>
#include "plain_types.cuh"

struct ProductArguments {
  const void *x;  // 16 bits; float32 where it is normed here
  const void *matrix;
  const float *bias;  // [columns], or null
  float *out;         // [rows, columns]; Gated [rows, columns / 2]; Turned q [rows, heads, dim]
  int rows, columns, width;
  // Turned alone.
  const float *norm, *cos, *sin;  // [width]; [rows, half], [rows, half]
  float *k, *v;                   // [rows, kv_heads, dim]
  int heads, kv_heads, dim, half, halves;  // `halves`: pairs are i, i + half; else 2 i, 2 i + 1
  float eps;
};

template <int M_, int N_, int K_, int ALONG_M, int ALONG_N, int ALONG_K, int STAGES_> struct Tile {
  static constexpr int M = M_, N = N_, K = K_, WARPS_M = ALONG_M, WARPS_N = ALONG_N, WARPS_K = ALONG_K, STAGES = STAGES_;
  static constexpr int THREADS = 32 * ALONG_M * ALONG_N * ALONG_K;
  static constexpr int PITCH = K + 8, WIDE = N + 4;  // neighbouring rows begin in other banks
  static constexpr int FRAGMENTS_M = M / ALONG_M / 16, FRAGMENTS_N = N / ALONG_N / 16;
  static_assert(FRAGMENTS_M * ALONG_M * 16 == M && FRAGMENTS_N * ALONG_N * 16 == N && K / 16 % ALONG_K == 0, "tile");
};

struct Plain {
  static constexpr bool NORMED = false;
  static __device__ __forceinline__ int row_of(const ProductArguments &a, int n) { return n; }
  static __device__ __forceinline__ void store(const ProductArguments &a, int row, int n, float first, float second) {
    float *place = a.out + (size_t)row * a.columns + n;
    place[0] = first + (a.bias ? a.bias[n] : 0.f);
    if (n + 1 < a.columns) place[1] = second + (a.bias ? a.bias[n + 1] : 0.f);
  }
};

struct Gated {
  static constexpr bool NORMED = false;
  static __device__ __forceinline__ int row_of(const ProductArguments &a, int n) { return n / 2 + (n % 2 ? a.columns / 2 : 0); }
  static __device__ __forceinline__ void store(const ProductArguments &a, int row, int n, float gate, float up) {
    const int i = n / 2, inner = a.columns / 2;
    if (a.bias) { gate += a.bias[i]; up += a.bias[inner + i]; }
    a.out[(size_t)row * inner + i] = silu(gate) * up;
  }
};

template <bool NORMED_HERE> struct Turned {
  static constexpr bool NORMED = NORMED_HERE;
  // Within a head: elements that are turned together lie side by side, those behind the turned ones stay.
  static __device__ __forceinline__ int element(const ProductArguments &a, int n) {
    return a.halves && n < 2 * a.half ? n / 2 + (n % 2 ? a.half : 0) : n;
  }
  static __device__ __forceinline__ int row_of(const ProductArguments &a, int n) { return n / a.dim * a.dim + element(a, n % a.dim); }
  static __device__ __forceinline__ void store(const ProductArguments &a, int row, int n, float first, float second) {
    const int head = n / a.dim, one = element(a, n % a.dim), two = element(a, n % a.dim + 1), pair = n % a.dim / 2;
    if (a.bias) { first += a.bias[head * a.dim + one]; second += a.bias[head * a.dim + two]; }
    const int key = head - a.heads, value = key - a.kv_heads;
    float *place = key < 0 ? a.out + ((size_t)row * a.heads + head) * a.dim
                           : (value < 0 ? a.k + ((size_t)row * a.kv_heads + key) * a.dim
                                        : a.v + ((size_t)row * a.kv_heads + value) * a.dim);
    if (value < 0 && pair < a.half) {
      const float c = a.cos[(size_t)row * a.half + pair], s = a.sin[(size_t)row * a.half + pair], before = first;
      first = first * c - second * s;
      second = second * c + before * s;
    }
    place[one] = first;
    place[two] = second;
  }
};

// A tile of K columns of COUNT rows to shared memory, zeros where there are none; `row_of(i)` is -1 for no row.
template <typename T, int COUNT, int K, int PITCH, int THREADS, typename RowOf>
__device__ __forceinline__ void copy_rows(T *target, const T *source, int width, int column, RowOf row_of) {
  constexpr int PIECES = K / 8;  // of 16 bytes
  for (int piece = threadIdx.x; piece < COUNT * PIECES; piece += THREADS) {
    const int i = piece / PIECES, k = column + piece % PIECES * 8, row = row_of(i);
    T *place = target + i * PITCH + piece % PIECES * 8;
    if (row >= 0 && k < width) __pipeline_memcpy_async(place, source + (size_t)row * width + k, 16);
    else *(uint4 *)place = make_uint4(0, 0, 0, 0);
  }
}

// The same of float32 rows, normed by `scale` of each and by the weights, rounded.
template <typename T, int COUNT, int K, int PITCH, int THREADS>
__device__ __forceinline__ void norm_rows(T *target, const ProductArguments &a, const float *scale, int first, int column) {
  constexpr int PIECES = K / 8;
  for (int piece = threadIdx.x; piece < COUNT * PIECES; piece += THREADS) {
    const int i = piece / PIECES, k = column + piece % PIECES * 8, row = first + i;
    __align__(16) T made[8];
    Eight<f32> x, weight;
    x.zero();
    weight.zero();
    if (row < a.rows && k < a.width) {
      x.load((const float *)a.x + (size_t)row * a.width + k);
      weight.load(a.norm + k);
    }
    float given[8], by[8];
    x.floats(given);
    weight.floats(by);
#pragma unroll
    for (int e = 0; e < 8; e++) made[e] = rounded<T>(given[e] * scale[i] * by[e]);
    *(uint4 *)(target + i * PITCH + piece % PIECES * 8) = *(const uint4 *)made;
  }
}

template <typename T, typename Of, typename Op> __device__ __forceinline__ void product(const ProductArguments &a) {
  using namespace nvcuda;
  extern __shared__ __align__(128) char shared[];  // STAGES tiles of x and matrix; the sums lie there afterwards
  __shared__ float scale[Op::NORMED ? Of::M : 1];
  T *xs = (T *)shared, *matrix = xs + Of::STAGES * Of::M * Of::PITCH;
  const int first_column = blockIdx.x * Of::N, first_row = blockIdx.y * Of::M;
  const int warp = threadIdx.x / 32, along_k = warp % Of::WARPS_K;
  const int along_n = warp / Of::WARPS_K % Of::WARPS_N, along_m = warp / Of::WARPS_K / Of::WARPS_N;

  if (Op::NORMED) {  // a warp a row
    for (int i = warp; i < Of::M; i += Of::THREADS / 32) {
      float squares = 0;
      if (first_row + i < a.rows)
#pragma unroll 4
        for (int k = threadIdx.x % 32 * 4; k < a.width; k += 128) {
          const float4 x = *(const float4 *)((const float *)a.x + (size_t)(first_row + i) * a.width + k);
          squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        }
      squares = warp_sum<32>(squares);
      if (threadIdx.x % 32 == 0) scale[i] = 1.f / sqrtf(squares / a.width + a.eps);
    }
    __syncthreads();
  }
  auto load = [&](int step) {
    const int stage = step % Of::STAGES, column = step * Of::K;
    T *x_tile = xs + stage * Of::M * Of::PITCH;
    if (Op::NORMED)
      norm_rows<T, Of::M, Of::K, Of::PITCH, Of::THREADS>(x_tile, a, scale, first_row, column);
    else
      copy_rows<T, Of::M, Of::K, Of::PITCH, Of::THREADS>(x_tile, (const T *)a.x, a.width, column, [&](int i) {
        return first_row + i < a.rows ? first_row + i : -1;
      });
    copy_rows<T, Of::N, Of::K, Of::PITCH, Of::THREADS>(
        matrix + stage * Of::N * Of::PITCH, (const T *)a.matrix, a.width, column,
        [&](int n) { return first_column + n < a.columns ? Op::row_of(a, first_column + n) : -1; });
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[Of::FRAGMENTS_M][Of::FRAGMENTS_N];
#pragma unroll
  for (int m = 0; m < Of::FRAGMENTS_M; m++)
#pragma unroll
    for (int n = 0; n < Of::FRAGMENTS_N; n++) wmma::fill_fragment(sums[m][n], 0.f);

  const int steps = (a.width + Of::K - 1) / Of::K;
#pragma unroll
  for (int step = 0; step < Of::STAGES - 1; step++) {
    if (step < steps) load(step);
    __pipeline_commit();
  }
  for (int step = 0; step < steps; step++) {
    __pipeline_wait_prior(Of::STAGES - 2);
    __syncthreads();  // this stage is there for all, and the one that is filled next was read by all
    if (step + Of::STAGES - 1 < steps) load(step + Of::STAGES - 1);
    __pipeline_commit();
    const T *x_tile = xs + (step % Of::STAGES * Of::M + along_m * Of::FRAGMENTS_M * 16) * Of::PITCH;
    const T *matrix_tile = matrix + (step % Of::STAGES * Of::N + along_n * Of::FRAGMENTS_N * 16) * Of::PITCH;
#pragma unroll
    for (int slice = 0; slice < Of::K / 16 / Of::WARPS_K; slice++) {
      const int k = (slice * Of::WARPS_K + along_k) * 16;
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left[Of::FRAGMENTS_M];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right[Of::FRAGMENTS_N];
#pragma unroll
      for (int m = 0; m < Of::FRAGMENTS_M; m++) wmma::load_matrix_sync(left[m], x_tile + m * 16 * Of::PITCH + k, Of::PITCH);
#pragma unroll
      for (int n = 0; n < Of::FRAGMENTS_N; n++)
        wmma::load_matrix_sync(right[n], matrix_tile + n * 16 * Of::PITCH + k, Of::PITCH);
#pragma unroll
      for (int m = 0; m < Of::FRAGMENTS_M; m++)
#pragma unroll
        for (int n = 0; n < Of::FRAGMENTS_N; n++) wmma::mma_sync(sums[m][n], left[m], right[n], sums[m][n]);
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  float *made = (float *)shared;  // [WARPS_K, M, WIDE]
#pragma unroll
  for (int m = 0; m < Of::FRAGMENTS_M; m++)
#pragma unroll
    for (int n = 0; n < Of::FRAGMENTS_N; n++)
      wmma::store_matrix_sync(
          made + (along_k * Of::M + (along_m * Of::FRAGMENTS_M + m) * 16) * Of::WIDE + (along_n * Of::FRAGMENTS_N + n) * 16,
          sums[m][n], Of::WIDE, wmma::mem_row_major);
  __syncthreads();
  for (int pair = threadIdx.x; pair < Of::M * Of::N / 2; pair += Of::THREADS) {
    const int i = pair / (Of::N / 2), n = pair % (Of::N / 2) * 2, row = first_row + i;
    if (row >= a.rows || first_column + n >= a.columns) continue;
    float first = 0, second = 0;
#pragma unroll
    for (int part = 0; part < Of::WARPS_K; part++) {
      const float *place = made + (part * Of::M + i) * Of::WIDE + n;
      first += place[0];
      second += place[1];
    }
    Op::store(a, row, first_column + n, first, second);
  }
}
