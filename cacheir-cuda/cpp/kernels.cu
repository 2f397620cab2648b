// Kernels of single ops for compute capability 8.0 and 9.0, one name for each choice in cacheir_cuda/compiled/.
#include "paged_decode.cuh"
#include "row_kernels.cuh"
#include "wmma_product.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(const __grid_constant__ NormArguments a) { norm_row(a); }
extern "C" __global__ void __launch_bounds__(GATE_THREADS) swiglu(const __grid_constant__ GateArguments a) { gate_values(a); }

// M rows and N columns of the result a block, K at a time; warps along each; stages of K that are under way.
typedef Tile<16, 16, 128, 1, 1, 4, 4> few_rows;
typedef Tile<64, 64, 64, 4, 2, 1, 4> some_rows;
typedef Tile<128, 128, 64, 2, 4, 1, 3> many_rows;

#define PRODUCT(ROWS, TYPE)                                                                                        \
  extern "C" __global__ void __launch_bounds__(ROWS::THREADS) linear_##ROWS##_##TYPE(const __grid_constant__ ProductArguments a) { \
    product<TYPE, ROWS, Plain>(a);                                                                                 \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(ROWS::THREADS) gated_##ROWS##_##TYPE(const __grid_constant__ ProductArguments a) {  \
    product<TYPE, ROWS, Gated>(a);                                                                                 \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(ROWS::THREADS) qkv_##ROWS##_##TYPE(const __grid_constant__ ProductArguments a) {    \
    product<TYPE, ROWS, Turned>(a);                                                                                \
  }
#define PRODUCTS(TYPE) PRODUCT(few_rows, TYPE) PRODUCT(some_rows, TYPE) PRODUCT(many_rows, TYPE)
PRODUCTS(f16)
PRODUCTS(bf16)

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
