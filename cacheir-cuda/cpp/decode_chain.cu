// The kernels of the decode chain, one for each choice in cacheir_cuda/chain/tiles.py; names say what they are made for.
#include "attention.cuh"
#include "head.cuh"
#include "product.cuh"

// Two kernels that follow each other fit a multiprocessor's 65,536 registers at once where each takes at most half.
constexpr int blocks_of(int k, int rows, int tiles, int warps, bool held) {
  return !held || tiles * rows * k / (warps * 32) / 2 <= 48 ? 32 / warps : 1;
}

#define PRODUCT(EPILOGUE, K, ROWS, TILES, WARPS, HOLD)                                                              \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks_of(K, ROWS, TILES, WARPS, Hold::HOLD != Hold::shared)) \
      product_##EPILOGUE##_k##K##_r##ROWS##_t##TILES##_w##WARPS##_##HOLD(const __grid_constant__ ProductArguments a) { \
    product<K, ROWS, TILES, WARPS, Epilogue::EPILOGUE, Hold::HOLD>(a);                                              \
  }
// BLOCKS a multiprocessor for a choice whose registers are told apart from the rule, PACE loads under way.
#define PRODUCT_AT(EPILOGUE, K, ROWS, TILES, WARPS, HOLD, BLOCKS, PACE)                                              \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                  \
      product_##EPILOGUE##_k##K##_r##ROWS##_t##TILES##_w##WARPS##_##HOLD##_b##BLOCKS##_p##PACE(const __grid_constant__ ProductArguments a) { \
    product<K, ROWS, TILES, WARPS, Epilogue::EPILOGUE, Hold::HOLD, PACE>(a);                                        \
  }
#define ATTENTION(HEADS, KV_HEADS, NAME, NORMED)                                                                    \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(ATTENTION_WARPS * 32, 2)              \
      attention_##NAME##_q##HEADS##_kv##KV_HEADS(const __grid_constant__ AttentionArguments a) {                   \
    attention<HEADS, KV_HEADS, NORMED>(a);                                                                          \
  }
#define HEAD_OF(WIDTH, ROWS)                                                                                        \
  extern "C" __global__ void __launch_bounds__(HEAD_WARPS * 32, 2)                                                  \
      head_h##WIDTH##_r##ROWS(const __grid_constant__ HeadArguments a) { head<WIDTH, ROWS>(a); }

#include "variants.inc"

ATTENTION(16, 8, normed, true)
ATTENTION(12, 2, plain, false)

extern "C" __global__ void __launch_bounds__(256) advance_row(const __grid_constant__ AdvanceArguments a) { advance(a); }
