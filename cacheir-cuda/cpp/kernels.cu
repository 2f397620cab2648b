// Kernels of single ops for compute capability 8.0 and 9.0, one name for each choice in cacheir_cuda/compiled/.
#include "paged_decode.cuh"
#include "row_kernels.cuh"
#include "wmma_product.cuh"

#define NORM(NAME, TYPE) \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) NAME(const __grid_constant__ NormArguments a) { norm_row<TYPE>(a); }
NORM(rms_norm, f32)
NORM(rms_norm_f16, f16)
NORM(rms_norm_bf16, bf16)
extern "C" __global__ void __launch_bounds__(GATE_THREADS) swiglu(const __grid_constant__ GateArguments a) { gate_values(a); }

// M rows and N columns of the result a block, K at a time; ALONG_M, .._N, .._K warps along each; STAGES of K under way.
#define PRODUCT(OP, KIND, TYPE, M, N, K, ALONG_M, ALONG_N, ALONG_K, WARPS, STAGES)                                 \
  extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                         \
      OP##_m##M##_n##N##_k##K##_w##WARPS##_d##ALONG_K##_s##STAGES##_##TYPE(const __grid_constant__ ProductArguments a) { \
    static_assert(ALONG_M * ALONG_N * ALONG_K == WARPS, "warps");                                                  \
    product<TYPE, Tile<M, N, K, ALONG_M, ALONG_N, ALONG_K, STAGES>, KIND>(a);                                      \
  }
// Few rows, some, many.  Where each row is read by few blocks it is normed on its way in; other rows are normed before.
#define PRODUCTS(OP, FEW, OTHER, TYPE)                  \
  PRODUCT(OP, FEW, TYPE, 16, 16, 256, 1, 1, 8, 8, 4)    \
  PRODUCT(OP, OTHER, TYPE, 64, 32, 128, 2, 1, 4, 8, 3)  \
  PRODUCT(OP, OTHER, TYPE, 128, 128, 64, 2, 2, 1, 4, 3)
#define ALL_PRODUCTS(TYPE)               \
  PRODUCTS(linear, Plain, Plain, TYPE)   \
  PRODUCTS(gated, Gated, Gated, TYPE)    \
  PRODUCTS(qkv, Turned<true>, Turned<false>, TYPE)
ALL_PRODUCTS(f16)
ALL_PRODUCTS(bf16)

#define PAGED(TYPE, LANES, GROUP)                                                                                  \
  extern "C" __global__ void __launch_bounds__(PAGED_THREADS)                                                      \
      paged_decode_##TYPE##_l##LANES##_g##GROUP(const __grid_constant__ PagedArguments a) {                        \
    paged_decode<TYPE, LANES, GROUP>(a);                                                                           \
  }
#define PAGED_GROUPS(TYPE, LANES) PAGED(TYPE, LANES, 1) PAGED(TYPE, LANES, 2) PAGED(TYPE, LANES, 4) PAGED(TYPE, LANES, 8)
#define PAGED_LANES(TYPE) PAGED_GROUPS(TYPE, 8) PAGED_GROUPS(TYPE, 16) PAGED_GROUPS(TYPE, 32)
PAGED_LANES(f32)
PAGED_LANES(f16)
PAGED_LANES(bf16)

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) paged_reduce(const __grid_constant__ PagedArguments a) { reduce_parts(a); }
