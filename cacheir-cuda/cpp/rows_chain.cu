// The kernels of the decode chain for several rows: those of each choice in cacheir_cuda/chain/rows_tiles.py; with -DTIMED
// those besides that were timed beside them.
#include "rows_attention.cuh"
#include "rows_head.cuh"
#include "rows_parts.cuh"
#include "rows_product.cuh"
#include "rows_residual.cuh"
#include "rows_stream.cuh"

// ROW_TILES eighths of the rows; BLOCKS of one kernel must fit a multiprocessor, which bounds its registers.
#define PRODUCT(EPILOGUE, K, ROWS, TILES, WARPS, HOLD, BLOCKS, PACE, ROW_TILES, AT_ONCE)                                  \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                       \
      rows_product_##EPILOGUE##_k##K##_r##ROWS##_t##TILES##_w##WARPS##_##HOLD##_b##BLOCKS##_p##PACE##_c##ROW_TILES(      \
          const __grid_constant__ RowsProductArguments a) {                                                              \
    rows_product<K, ROWS, TILES, WARPS, Epilogue::EPILOGUE, Hold::HOLD, PACE, ROW_TILES, AT_ONCE>(a);                    \
  }
// A cluster of RANKS blocks shares the columns.
#define RESIDUAL(K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, BLOCKS, ROW_TILES)                                         \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(GROUPS * PARTS * 32, BLOCKS)                 \
      rows_residual_k##K##_t##TILES##_g##GROUPS##_p##PARTS##_s##RANKS##_w##STAGES##_n##SLOTS##_b##BLOCKS##_c##ROW_TILES(   \
          const __grid_constant__ RowsProductArguments a) {                                                                \
    rows_residual<K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, ROW_TILES, false, (GROUPS * PARTS * BLOCKS <= 18)>(a);     \
  }
// It begins with the first of the rows.
#define RESIDUAL_EARLY(K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, BLOCKS, ROW_TILES)                                        \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(GROUPS * PARTS * 32, BLOCKS)                      \
      rows_residual_k##K##_t##TILES##_g##GROUPS##_p##PARTS##_s##RANKS##_w##STAGES##_n##SLOTS##_b##BLOCKS##_c##ROW_TILES##_early( \
          const __grid_constant__ RowsProductArguments a) {                                                                     \
    rows_residual<K, TILES, GROUPS, PARTS, RANKS, STAGES, SLOTS, ROW_TILES, true, (GROUPS * PARTS * BLOCKS <= 18)>(a);         \
  }
#define ATTENTION(HEADS, KV_HEADS, NAME, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, BLOCKS)                      \
  extern "C" __global__ void __cluster_dims__(RANKS_OF_ROW, 1, 1) __launch_bounds__(WARPS * 32, BLOCKS)                  \
      rows_attention_##NAME##_q##HEADS##_kv##KV_HEADS##_h##SHARES##_s##RANKS_OF_ROW##_w##WARPS##_p##PIECES##_a##AHEAD##_o##ALONE##_b##BLOCKS( \
          const __grid_constant__ RowsAttentionArguments a) {                                                            \
    rows_attention<HEADS, KV_HEADS, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, false>(a);                       \
  }
// The same where QKV leaves its sums in parts.
#define ATTENTION_OF_PARTS(QKV_PARTS, HEADS, KV_HEADS, NAME, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, BLOCKS)   \
  extern "C" __global__ void __cluster_dims__(RANKS_OF_ROW, 1, 1) __launch_bounds__(WARPS * 32, BLOCKS)                  \
      rows_attention_##NAME##_q##HEADS##_kv##KV_HEADS##_h##SHARES##_s##RANKS_OF_ROW##_w##WARPS##_p##PIECES##_a##AHEAD##_o##ALONE##_b##BLOCKS##_of##QKV_PARTS( \
          const __grid_constant__ RowsAttentionArguments a) {                                                            \
    rows_attention<HEADS, KV_HEADS, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, false, QKV_PARTS>(a);      \
  }
#define PROMPT(HEADS, KV_HEADS, NAME, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, BLOCKS)                         \
  extern "C" __global__ void __cluster_dims__(RANKS_OF_ROW, 1, 1) __launch_bounds__(WARPS * 32, BLOCKS)                  \
      rows_prompt_##NAME##_q##HEADS##_kv##KV_HEADS##_h##SHARES##_s##RANKS_OF_ROW##_w##WARPS##_p##PIECES##_a##AHEAD##_o##ALONE##_b##BLOCKS( \
          const __grid_constant__ RowsAttentionArguments a) {                                                            \
    rows_attention<HEADS, KV_HEADS, NORMED, SHARES, RANKS_OF_ROW, WARPS, PIECES, AHEAD, ALONE, true>(a);                        \
  }
#define APPEND(HEADS, KV_HEADS, NAME, NORMED)                                                                             \
  extern "C" __global__ void __launch_bounds__(2 * KV_HEADS * 32)                                                        \
      rows_append_##NAME##_q##HEADS##_kv##KV_HEADS(const __grid_constant__ RowsAttentionArguments a) {                   \
    append<HEADS, KV_HEADS, NORMED>(a);                                                                                  \
  }
// The matrix is packed in blocks of TOGETHER tiles.
#define STREAM(EPILOGUE, K, TOGETHER, WARPS, STAGES, ROW_TILES)                                                            \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, ROW_TILES == 1 ? 2 : 1)                                       \
      rows_stream_##EPILOGUE##_k##K##_t##TOGETHER##_w##WARPS##_s##STAGES##_c##ROW_TILES(                                 \
          const __grid_constant__ RowsProductArguments a) {                                                              \
    rows_stream<K, TOGETHER, WARPS, Epilogue::EPILOGUE, STAGES, ROW_TILES>(a);                                           \
  }
// Sums of SPLIT parts of the columns.
#define PARTS_OF(K, TOGETHER, TILES, GROUPS, PARTS, SPLIT, ROW_TILES)                                                     \
  extern "C" __global__ void __launch_bounds__(GROUPS * PARTS * 32, 1)                                                   \
      rows_parts_qkv_k##K##_t##TILES##_g##GROUPS##_p##PARTS##_s##SPLIT##_c##ROW_TILES(                                    \
          const __grid_constant__ RowsProductArguments a) {                                                              \
    rows_parts<K, TOGETHER, TILES, GROUPS, PARTS, SPLIT, ROW_TILES>(a);                                                  \
  }
#define HEAD_OF(WIDTH, ROW_TILES, STAGES)                                                                            \
  extern "C" __global__ void __launch_bounds__(ROWS_HEAD_WARPS * 32, 1)                                                  \
      rows_head_h##WIDTH##_c##ROW_TILES##_s##STAGES(const __grid_constant__ RowsHeadArguments a) {                       \
    rows_head<WIDTH, ROW_TILES, STAGES>(a);                                                                              \
  }

extern "C" __global__ void __launch_bounds__(BEGIN_WARPS * 32) rows_begin(const __grid_constant__ RowsBeginArguments a) {
  begin_rows(a);
}
extern "C" __global__ void __launch_bounds__(BEGIN_WARPS * 32) rows_advance(const __grid_constant__ RowsAdvanceArguments a) {
  advance_rows(a);
}

// Qwen3-0.6B: hidden 1024, feed-forward 3072, 16 and 8 heads.
PRODUCT(qkv, 1024, 16, 2, 8, registers, 1, 4, 1, 1)
PRODUCT(residual, 2048, 8, 1, 16, registers, 2, 0, 1, 1)
PRODUCT(swiglu, 1024, 16, 3, 8, registers, 2, 8, 1, 1)
PRODUCT(residual, 3072, 8, 1, 12, registers, 2, 2, 1, 1)
PRODUCT(qkv, 1024, 16, 2, 8, shared, 2, 0, 4, 2)
PRODUCT(swiglu, 1024, 16, 3, 8, shared, 2, 0, 2, 2)
PRODUCT(qkv, 1024, 16, 2, 8, registers, 1, 4, 2, 2)
PRODUCT(residual, 2048, 8, 1, 16, registers, 1, 0, 2, 2)
PRODUCT(swiglu, 1024, 16, 3, 8, registers, 1, 8, 4, 4)
RESIDUAL(2048, 1, 1, 4, 2, 4, 4, 3, 4)
RESIDUAL(3072, 1, 1, 12, 2, 2, 2, 2, 2)
RESIDUAL(3072, 2, 1, 6, 4, 2, 2, 3, 4)
ATTENTION(16, 8, normed, true, 1, 4, 16, 2, 0, 1, 2)
ATTENTION(16, 8, normed, true, 1, 2, 16, 2, 0, 1, 2)
ATTENTION(16, 8, normed, true, 1, 2, 8, 4, 0, 2, 2)
ATTENTION(16, 8, normed, true, 1, 1, 8, 3, 0, 0, 2)
ATTENTION(16, 8, normed, true, 1, 1, 8, 2, 2, 0, 2)
PROMPT(16, 8, normed, true, 1, 1, 8, 2, 2, 0, 3)
APPEND(16, 8, normed, true)
HEAD_OF(1024, 1, 8)
HEAD_OF(1024, 2, 8)
HEAD_OF(1024, 4, 8)

// Qwen3-1.7B: hidden 2048, feed-forward 6144, 16 and 8 heads; attention of few rows and of prompts as above.
PRODUCT(residual, 2048, 16, 1, 16, registers, 2, 4, 1, 1)
PRODUCT(qkv, 2048, 16, 2, 16, shared, 1, 0, 2, 2)
PRODUCT(qkv, 2048, 16, 2, 16, shared, 1, 0, 4, 2)
RESIDUAL(2048, 2, 2, 4, 4, 2, 2, 3, 2)
RESIDUAL(2048, 2, 2, 4, 4, 2, 2, 3, 4)
RESIDUAL(6144, 2, 1, 8, 2, 4, 6, 1, 1)
RESIDUAL(6144, 2, 1, 12, 2, 2, 4, 1, 2)
RESIDUAL(6144, 4, 2, 4, 6, 2, 4, 1, 4)
PRODUCT(qkv, 2048, 16, 2, 16, shared, 1, 0, 1, 1)
STREAM(swiglu, 2048, 1, 16, 8, 1)
STREAM(swiglu, 2048, 1, 8, 18, 2)
STREAM(swiglu, 2048, 1, 8, 12, 4)
ATTENTION(16, 8, normed, true, 1, 2, 8, 2, 0, 0, 3)
ATTENTION(16, 8, normed, true, 1, 1, 16, 2, 0, 0, 1)
HEAD_OF(2048, 1, 8)
HEAD_OF(2048, 2, 8)
HEAD_OF(2048, 4, 4)

// DeepSeek-R1-Distill-Qwen-1.5B: hidden 1536, feed-forward 8960, 12 and 2 heads.
PRODUCT(qkv, 1536, 16, 1, 12, registers, 2, 4, 1, 1)
ATTENTION(12, 2, plain, false, 3, 4, 8, 4, 0, 2, 2)
ATTENTION(12, 2, plain, false, 3, 2, 8, 4, 0, 2, 2)
ATTENTION(12, 2, plain, false, 2, 2, 8, 4, 0, 2, 2)
PROMPT(12, 2, plain, false, 2, 1, 16, 2, 0, 0, 2)
APPEND(12, 2, plain, false)
PRODUCT(residual, 1536, 16, 1, 12, registers, 2, 4, 1, 1)
PRODUCT(qkv, 1536, 16, 1, 12, registers, 2, 4, 2, 2)
PRODUCT(qkv, 1536, 16, 1, 12, registers, 1, 4, 4, 2)
PARTS_OF(1536, 1, 2, 2, 4, 2, 4)
ATTENTION_OF_PARTS(2, 12, 2, plain, false, 2, 1, 8, 3, 0, 0, 2)
RESIDUAL(1536, 1, 1, 6, 2, 2, 2, 3, 2)
RESIDUAL(1536, 2, 2, 3, 4, 2, 2, 2, 4)
RESIDUAL(8960, 3, 1, 8, 3, 2, 6, 1, 1)
RESIDUAL(8960, 3, 2, 4, 6, 3, 6, 1, 2)
RESIDUAL_EARLY(8960, 3, 2, 4, 6, 2, 3, 1, 4)
STREAM(swiglu, 1536, 1, 16, 10, 1)
STREAM(swiglu, 1536, 1, 12, 12, 2)
STREAM(swiglu, 1536, 1, 12, 12, 4)
HEAD_OF(1536, 1, 8)
HEAD_OF(1536, 2, 8)
HEAD_OF(1536, 4, 6)

// Timed beside them and slower (benchmarks/cuda/rows_times.py variants), so the package has none of them.
#ifdef TIMED
ATTENTION(12, 2, plain, false, 2, 1, 8, 3, 0, 0, 2)
ATTENTION(12, 2, plain, false, 2, 1, 16, 2, 0, 0, 1)
RESIDUAL(1536, 1, 3, 3, 4, 2, 2, 2, 4)
PRODUCT(residual, 6144, 16, 1, 24, shared, 1, 0, 2, 1)
PRODUCT(residual, 6144, 16, 1, 24, shared, 1, 0, 1, 1)
PRODUCT(residual, 1536, 16, 1, 12, registers, 2, 4, 2, 2)
PRODUCT(residual, 2048, 8, 1, 16, registers, 1, 0, 4, 4)
PRODUCT(residual, 3072, 8, 1, 12, registers, 1, 2, 4, 2)
PRODUCT(residual, 2048, 16, 1, 16, registers, 1, 4, 2, 2)
PRODUCT(residual, 2048, 16, 1, 16, registers, 1, 4, 4, 2)
PRODUCT(residual, 6144, 16, 1, 24, shared, 1, 0, 4, 1)
PRODUCT(residual, 1536, 16, 1, 12, registers, 1, 4, 4, 2)
PRODUCT(qkv, 1024, 16, 2, 8, shared, 2, 0, 1, 1)
PRODUCT(qkv, 1024, 16, 2, 8, shared, 2, 0, 2, 2)
PRODUCT(swiglu, 1024, 16, 3, 8, shared, 2, 0, 1, 1)
PRODUCT(swiglu, 1024, 16, 3, 8, shared, 2, 0, 4, 2)
PRODUCT(swiglu, 1024, 16, 3, 8, registers, 1, 8, 2, 2)
PRODUCT(residual, 3072, 8, 1, 12, registers, 1, 2, 2, 2)
PRODUCT(qkv, 1024, 16, 2, 8, registers, 1, 4, 4, 4)
STREAM(swiglu, 1024, 3, 16, 6, 1)
STREAM(swiglu, 1024, 3, 16, 6, 2)
STREAM(swiglu, 1024, 3, 16, 6, 4)
STREAM(qkv, 2048, 2, 16, 8, 1)
STREAM(qkv, 2048, 2, 16, 8, 2)
STREAM(qkv, 2048, 2, 16, 6, 4)
#include "rows_searched.cuh"
#endif
