// Shapes of R1-Distill-Qwen-1.5B's kernels for 17 to 32 rows that benchmarks/cuda/rows_search.py times; in no package.
//
// `early` is a switch of rows_residual.cuh.  What spills or fits no multiprocessor is not here.
#pragma once

#define RESIDUAL_EARLY(K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, BLOCKS, ROW_TILES)                                            \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(GROUPS * PARTS * 32, BLOCKS)                          \
      rows_residual_k##K##_t##TILES##_g##GROUPS##_p##PARTS##_s##RANKS##_w##STAGES##_n##SLOTS##_b##BLOCKS##_c##ROW_TILES##_early(   \
          const __grid_constant__ RowsProductArguments a) {                                                                         \
    rows_residual<K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, ROW_TILES, true>(a);                                               \
  }

// down
RESIDUAL(8960, 3, 2, 4, 6, 3, 3, 1, 4)
RESIDUAL(8960, 3, 2, 4, 6, 2, 3, 1, 4)
RESIDUAL(8960, 3, 2, 4, 6, 2, 4, 1, 4)
RESIDUAL(8960, 3, 2, 4, 6, 3, 2, 1, 4)
RESIDUAL(8960, 3, 2, 4, 6, 2, 2, 1, 4)
RESIDUAL(8960, 3, 2, 6, 6, 2, 2, 1, 4)
RESIDUAL(8960, 3, 2, 5, 6, 2, 3, 1, 4)
RESIDUAL(8960, 2, 3, 4, 6, 3, 3, 1, 4)
RESIDUAL(8960, 2, 3, 4, 6, 2, 4, 1, 4)
RESIDUAL(8960, 2, 3, 4, 6, 2, 6, 1, 4)
RESIDUAL(8960, 4, 2, 4, 8, 2, 3, 1, 4)
RESIDUAL(8960, 4, 2, 4, 8, 2, 5, 1, 4)
RESIDUAL(8960, 2, 2, 4, 5, 2, 2, 1, 4)
RESIDUAL(8960, 2, 2, 4, 5, 3, 3, 1, 4)
RESIDUAL(8960, 2, 2, 4, 5, 4, 3, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 4, 6, 2, 6, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 4, 6, 3, 3, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 4, 6, 2, 3, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 4, 6, 2, 4, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 6, 6, 2, 2, 1, 4)
RESIDUAL_EARLY(8960, 3, 2, 5, 6, 2, 3, 1, 4)
RESIDUAL_EARLY(8960, 2, 3, 4, 6, 2, 6, 1, 4)
RESIDUAL_EARLY(8960, 2, 3, 4, 6, 3, 3, 1, 4)
RESIDUAL_EARLY(8960, 4, 2, 4, 8, 2, 5, 1, 4)
RESIDUAL_EARLY(8960, 2, 2, 4, 5, 3, 3, 1, 4)

// output
RESIDUAL(1536, 2, 2, 3, 4, 2, 2, 3, 4)
RESIDUAL(1536, 2, 2, 2, 4, 2, 2, 2, 4)
RESIDUAL(1536, 2, 2, 2, 4, 3, 2, 2, 4)
RESIDUAL(1536, 2, 2, 2, 4, 3, 3, 2, 4)
RESIDUAL(1536, 4, 1, 4, 4, 2, 2, 2, 4)
RESIDUAL(1536, 2, 1, 4, 2, 3, 3, 2, 4)
RESIDUAL(1536, 2, 1, 4, 2, 3, 2, 2, 4)
RESIDUAL(1536, 1, 4, 1, 4, 6, 6, 3, 4)
RESIDUAL(1536, 1, 4, 2, 4, 3, 3, 2, 4)
RESIDUAL(1536, 2, 2, 2, 6, 2, 2, 2, 4)
RESIDUAL_EARLY(1536, 2, 2, 3, 4, 2, 2, 2, 4)
RESIDUAL_EARLY(1536, 2, 2, 2, 4, 3, 3, 2, 4)
RESIDUAL_EARLY(1536, 1, 4, 1, 4, 6, 6, 3, 4)

// gate and up
STREAM(swiglu, 1536, 1, 12, 7, 4)
STREAM(swiglu, 1536, 1, 12, 8, 4)
STREAM(swiglu, 1536, 1, 12, 9, 4)
STREAM(swiglu, 1536, 1, 12, 10, 4)
STREAM(swiglu, 1536, 1, 12, 11, 4)
STREAM(swiglu, 1536, 1, 12, 13, 4)
STREAM(swiglu, 1536, 1, 8, 9, 4)
STREAM(swiglu, 1536, 1, 8, 10, 4)
STREAM(swiglu, 1536, 1, 8, 12, 4)
STREAM(swiglu, 1536, 1, 8, 18, 4)
STREAM(swiglu, 1536, 1, 6, 16, 4)
STREAM(swiglu, 1536, 1, 6, 24, 4)
STREAM(swiglu, 1536, 1, 16, 8, 4)

// QKV, and the attention that adds as many parts
PARTS_OF(1536, 1, 1, 4, 2, 4, 4)
PARTS_OF(1536, 1, 2, 2, 3, 4, 4)
PARTS_OF(1536, 1, 4, 1, 4, 4, 4)
PARTS_OF(1536, 1, 1, 4, 1, 4, 4)
PARTS_OF(1536, 1, 2, 2, 4, 3, 4)
PARTS_OF(1536, 1, 2, 2, 4, 2, 4)
ATTENTION_OF_PARTS(3, 12, 2, plain, false, 2, 1, 8, 3, 0, 0, 2)
ATTENTION_OF_PARTS(2, 12, 2, plain, false, 2, 1, 8, 3, 0, 0, 2)

// attention
ATTENTION_OF_PARTS(4, 12, 2, plain, false, 2, 1, 8, 2, 0, 0, 2)
ATTENTION_OF_PARTS(4, 12, 2, plain, false, 2, 1, 8, 4, 0, 0, 2)
ATTENTION_OF_PARTS(4, 12, 2, plain, false, 2, 1, 12, 2, 0, 0, 1)
ATTENTION_OF_PARTS(4, 12, 2, plain, false, 2, 1, 16, 2, 0, 0, 1)
ATTENTION_OF_PARTS(4, 12, 2, plain, false, 3, 1, 8, 3, 0, 0, 2)

// head
HEAD_OF(1536, 4, 4)
