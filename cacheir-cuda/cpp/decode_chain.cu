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
// BLOCKS a multiprocessor for a choice whose registers are told apart from the rule.
#define PRODUCT_AT(EPILOGUE, K, ROWS, TILES, WARPS, HOLD, BLOCKS)                                                    \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                  \
      product_##EPILOGUE##_k##K##_r##ROWS##_t##TILES##_w##WARPS##_##HOLD##BLOCKS(const __grid_constant__ ProductArguments a) { \
    product<K, ROWS, TILES, WARPS, Epilogue::EPILOGUE, Hold::HOLD>(a);                                              \
  }
#define ATTENTION(HEADS, KV_HEADS, NAME, NORMED)                                                                    \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(ATTENTION_WARPS * 32, 2)              \
      attention_##NAME##_q##HEADS##_kv##KV_HEADS(const __grid_constant__ AttentionArguments a) {                   \
    attention<HEADS, KV_HEADS, NORMED>(a);                                                                          \
  }
#define HEAD_OF(WIDTH, ROWS)                                                                                        \
  extern "C" __global__ void __launch_bounds__(HEAD_WARPS * 32, 2)                                                  \
      head_h##WIDTH##_r##ROWS(const __grid_constant__ HeadArguments a) { head<WIDTH, ROWS>(a); }

// Qwen3-0.6B: hidden 1024, feed-forward 3072, 16 and 8 heads.
PRODUCT(qkv, 1024, 16, 2, 16, registers)
PRODUCT(qkv, 1024, 16, 2, 16, both)
PRODUCT(residual, 2048, 8, 1, 8, registers)
PRODUCT(residual, 2048, 8, 1, 8, both)
PRODUCT(swiglu, 1024, 16, 3, 16, registers)
PRODUCT(residual, 3072, 8, 1, 12, registers)
PRODUCT_AT(swiglu, 1024, 16, 3, 16, registers, 1)
PRODUCT(swiglu, 1024, 16, 3, 16, shared)
PRODUCT(swiglu, 1024, 16, 1, 8, registers)
PRODUCT_AT(swiglu, 1024, 16, 3, 8, registers, 1)
PRODUCT(qkv, 1024, 16, 1, 8, registers)
PRODUCT_AT(qkv, 1024, 16, 2, 8, registers, 2)
PRODUCT(qkv, 1024, 16, 2, 16, shared)
PRODUCT(residual, 2048, 8, 1, 8, shared)
PRODUCT(residual, 3072, 8, 1, 12, shared)
HEAD_OF(1024, 4)
// Qwen3-1.7B: hidden 2048, feed-forward 6144, 16 and 8 heads.
PRODUCT(qkv, 2048, 16, 2, 16, registers)
PRODUCT(qkv, 2048, 16, 1, 8, shared)
PRODUCT(residual, 2048, 16, 1, 16, registers)
PRODUCT(swiglu, 2048, 16, 1, 8, shared)
PRODUCT(residual, 6144, 8, 1, 16, shared)
PRODUCT(qkv, 2048, 16, 1, 16, registers)
PRODUCT_AT(swiglu, 2048, 16, 1, 8, registers, 2)
PRODUCT(swiglu, 2048, 16, 1, 16, registers)
PRODUCT(residual, 6144, 16, 1, 16, shared)
PRODUCT(residual, 6144, 8, 1, 12, shared)
HEAD_OF(2048, 1)
// DeepSeek-R1-Distill-Qwen-1.5B: hidden 1536, feed-forward 8960, 12 and 2 heads.
PRODUCT(qkv, 1536, 16, 1, 12, registers)
PRODUCT(qkv, 1536, 16, 1, 8, shared)
PRODUCT(residual, 1536, 8, 1, 8, registers)
PRODUCT(swiglu, 1536, 16, 1, 8, shared)
PRODUCT(residual, 8960, 4, 1, 14, shared)
PRODUCT(residual, 8960, 8, 1, 20, shared)
PRODUCT_AT(swiglu, 1536, 16, 1, 8, registers, 2)
PRODUCT(residual, 8960, 4, 1, 14, registers)
HEAD_OF(1536, 2)

ATTENTION(16, 8, normed, true)
ATTENTION(12, 2, plain, false)

extern "C" __global__ void __launch_bounds__(256) advance_row(const __grid_constant__ AdvanceArguments a) { advance(a); }
