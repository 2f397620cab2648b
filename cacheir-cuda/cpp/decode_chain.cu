// The kernels of the decode chain, one for each choice in cacheir_cuda/chain/tiles.py; names say what they are made for.
#include "advance.cuh"
#include "attention.cuh"
#include "product.cuh"
#include "stream.cuh"

// BLOCKS of one kernel must fit a multiprocessor: that bounds its registers.  PACE: product.cuh.
#define PRODUCT(EPILOGUE, K, ROWS, TILES, WARPS, HOLD, BLOCKS, PACE)                                          \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                           \
      product_##EPILOGUE##_k##K##_r##ROWS##_t##TILES##_w##WARPS##_##HOLD##_b##BLOCKS##_p##PACE(              \
          const __grid_constant__ ProductArguments a) {                                                      \
    product<K, ROWS, TILES, WARPS, Epilogue::EPILOGUE, Hold::HOLD, PACE>(a);                                 \
  }
#define ATTENTION(HEADS, KV_HEADS, NAME, NORMED, BLOCKS)                                                      \
  extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(ATTENTION_WARPS * 32, BLOCKS)   \
      attention_##NAME##_q##HEADS##_kv##KV_HEADS##_b##BLOCKS(const __grid_constant__ AttentionArguments a) { \
    attention<HEADS, KV_HEADS, NORMED>(a);                                                                   \
  }
// STAGES pieces of STAGE kilobytes are under way in a warp.
#define STREAM(EPILOGUE, LAYOUT, K, ROWS, WARPS, BLOCKS, STAGE, STAGES)                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                           \
      stream_##EPILOGUE##_##LAYOUT##_k##K##_r##ROWS##_w##WARPS##_b##BLOCKS##_s##STAGE##x##STAGES(            \
          const __grid_constant__ ProductArguments a) {                                                      \
    stream<K, ROWS, WARPS, Epilogue::EPILOGUE, Layout::LAYOUT, STAGE, STAGES>(a);                            \
  }

// Qwen3-0.6B: hidden 1024, feed-forward 3072, 16 and 8 heads.
PRODUCT(qkv, 1024, 16, 2, 8, registers, 1, 4)
ATTENTION(16, 8, normed, true, 2)
PRODUCT(residual, 2048, 8, 1, 16, registers, 2, 0)
PRODUCT(swiglu, 1024, 16, 3, 8, registers, 1, 8)
PRODUCT(residual, 3072, 8, 1, 12, registers, 1, 2)
STREAM(head, stored, 1024, 16, 16, 2, 2, 3)

// Qwen3-1.7B: hidden 2048, feed-forward 6144, 16 and 8 heads.
PRODUCT(qkv, 2048, 16, 2, 16, shared, 1, 0)
ATTENTION(16, 8, normed, true, 1)
PRODUCT(residual, 2048, 16, 1, 16, registers, 2, 4)
STREAM(swiglu, packed, 2048, 16, 16, 2, 1, 6)
PRODUCT(residual, 6144, 16, 1, 24, shared, 1, 0)
STREAM(head, stored, 2048, 16, 16, 1, 2, 6)

// DeepSeek-R1-Distill-Qwen-1.5B: hidden 1536, feed-forward 8960, 12 and 2 heads.
PRODUCT(qkv, 1536, 16, 1, 12, registers, 2, 4)
ATTENTION(12, 2, plain, false, 1)
PRODUCT(residual, 1536, 16, 1, 12, registers, 2, 4)
STREAM(swiglu, packed, 1536, 16, 12, 1, 1, 18)
STREAM(residual, stored, 8960, 8, 14, 1, 2, 5)
STREAM(head, stored, 1536, 16, 12, 1, 2, 8)

// Llama-3.1-8B: hidden 4096, feed-forward 14336, 32 and 8 heads.
STREAM(qkv, stored, 4096, 16, 16, 2, 2, 4)
ATTENTION(32, 8, plain, false, 2)
STREAM(residual, stored, 4096, 16, 16, 2, 2, 4)
STREAM(swiglu, stored, 4096, 16, 16, 1, 2, 4)
STREAM(residual, stored, 14336, 4, 14, 1, 2, 4)
STREAM(head, stored, 4096, 16, 16, 1, 2, 6)

// Qwen2.5-7B: hidden 3584, feed-forward 18944, 28 and 4 heads.
STREAM(qkv, stored, 3584, 16, 14, 2, 2, 5)
ATTENTION(28, 4, plain, false, 1)
STREAM(residual, stored, 3584, 16, 14, 2, 2, 5)
STREAM(swiglu, stored, 3584, 16, 14, 1, 2, 5)
STREAM(residual, stored, 18944, 4, 15, 1, 2, 4)
STREAM(head, stored, 3584, 16, 14, 1, 2, 5)

extern "C" __global__ void __launch_bounds__(256) advance_row(const __grid_constant__ AdvanceArguments a) { advance(a); }
