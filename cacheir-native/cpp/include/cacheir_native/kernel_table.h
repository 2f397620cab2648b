// What an instruction set's object gives to the core: one table of function pointers over plain structs.
//
// Plain declarations only; see formats.h.
#pragma once
#include "cacheir_native/formats.h"

namespace cacheir {

constexpr int kMaxTileRows = 12;
constexpr int kChunkKeys = 128;      // keys of one partial softmax, counted from position 0
constexpr int kExactQueryRows = 6;     // query rows that one attend task takes in f32
constexpr int kMaxQueryRows = 48;      // ... where its products are of bf16; all share a conversion of keys and values
constexpr int kRoundedQueryRows = 12;  // ... of which so many are computed at once
constexpr int kMaxChunkTiles = kChunkKeys / 16;

// Rows of a step packed for matmuls: tiles of 12, 8, 4, 2 or 1 rows (fewer kinds where registers are few; tile_rows of
// the table says which), rows of a tile side by side. With r the first row of a tile of m rows and i a row in it:
//   int8   codes [r*K + (b*m + i)*32 + k%32], scales and sums [r*B + b*m + i], B = K / 32
//   bf16   codes [r*K' + (k/2*m + i)*2 + k%2] of 2 bytes, K' = K rounded up to 2
//   f32    codes [r*K + k*m + i] of 4 bytes
struct Activations {
  Act kind;
  int rows, columns;
  void* codes;
  float* scale;         // int8: amax / 127 of the block
  float* scaled_sum;    // scale * sum of the codes
  int32_t* minus_sum;   // minus the sum of the block's codes
  int32_t* minus_low;   // ... of its first 16
  int32_t* minus_high;  // ... of its last 16
};

// One matrix in panels. Panel p begins at data + p * stride (a pair interleaves two matrices).
struct Matrix {
  Panel format;
  const uint8_t* data;
  size_t stride;
  int rows, columns, panels;
};

// Where a product goes: out[row * row_stride + n], plus bias[n], plus residual at the same place, each if not null.
// With `tiles`, where the product's own activations are of bf16, swiglu writes no rows but activations of bf16 of its
// w->rows columns there, for the product after it.
struct Destination {
  float* out;
  size_t row_stride;
  const float* bias;
  const float* residual;
  size_t residual_stride;
  void* tiles;
};

// The best logit of each row so far; `bad` is set by a NaN.
struct Best {
  float* value;
  int32_t* index;
  uint8_t* bad;
};

struct PackRows {
  const float* x;         // [rows][row_stride]
  size_t row_stride;
  const float* norm;      // null for none
  float eps;
  float* scratch;         // `columns` rounded up to 32, floats
  Activations* to;
  int first_row, last_row;  // of whole tiles
};

enum class KvFormat : int32_t { f32, f16, bf16, int8 };

// One layer's part of a pool. A page of a head is keys [tokens/16][head_dim][16], then values [tokens][padded_dim],
// then (int8) key scales f32 [tokens] and value scales f32 [tokens].
struct KvLayer {
  KvFormat format;
  uint8_t* data;
  size_t page_stride, head_stride, value_offset, key_scale_offset, value_scale_offset;
  int page_tokens, head_dim, padded_dim;
};

struct AppendKv {
  const KvLayer* kv;
  const float* k;
  const float* v;
  size_t row_stride;  // floats between tokens; heads lie head_dim apart
  int heads;
  const int32_t* slots;
  int first, last;  // tokens
};

// A row sees the latest `window` keys (0: all), its own included, and the first `sinks` besides. Pages that lie between may
// be gone: nothing of them is read.
// Up to kExactQueryRows or kMaxQueryRows query rows of one KV head and one sequence against chunks [first_chunk, last_chunk).
// state: for each row the largest score, the sum of weights, then the weighted values [padded_dim].
// `rounded` multiplies bf16 pairs and adds in f32: queries, keys, values and weights are rounded, scores are not. It has
// no effect on a set without bf16_dot.
struct Attend {
  const KvLayer* kv;
  int head;
  const int32_t* pages;
  const float* q[kMaxQueryRows];
  int32_t position[kMaxQueryRows];
  int rows, window, sinks, first_chunk, last_chunk;
  bool rounded;
  float scale, softcap;  // scores become softcap * tanh(score / softcap), where it is not 0
  float* state[kMaxQueryRows];
  float* scratch;  // attend_scratch_floats(head_dim)
};
// Queries, scores, weights and weighted values of rows; where rounded, a chunk's keys and values too.
constexpr size_t attend_scratch_floats(int head_dim) {
  const size_t dim = round_up(static_cast<size_t>(head_dim), 16);
  return kMaxQueryRows * dim + kRoundedQueryRows * (kChunkKeys + kChunkKeys / 2 + dim) + kChunkKeys * dim + 64;
}

struct Rope {
  const float* cos;
  const float* sin;
  int dims, interleaved, heads, head_dim;
};

struct KernelTable {
  const char* name;
  int bf16_dot;  // bf16 panels take bf16 activations
  // The rows of the tile that a run of `left` rows begins with.
  int (*tile_rows)(Act kind, int left);
  void (*pack_rows)(const PackRows*);
  void (*matmul)(const Matrix*, const Activations*, int first_panel, int last_panel, const Destination*);
  void (*swiglu)(const Matrix* gate, const Matrix* up, const Activations*, int first_panel, int last_panel,
                 const Destination*, const float* up_bias);
  void (*argmax)(const Matrix*, const Activations*, int first_panel, int last_panel, const float* bias, const Best*);
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int columns);
  void (*rope)(const float* x, float* out, const float* cos, const float* sin, const Rope*);  // one token
  void (*append_kv)(const AppendKv*);
  void (*attend)(const Attend*);
  void (*merge_state)(float* into, const float* from, int padded_dim);
  void (*finish_state)(const float* state, float* out, int head_dim);
  void (*elementwise)(int op, const float* a, const float* b, float* out, size_t count);  // see Elementwise
  float (*largest)(const float* x, size_t count);  // NaN if there is one
  void (*unpack_keys)(const KvLayer*, int head, int page, float* keys, float* values);  // [tokens][head_dim] each
  void (*pack_keys)(const KvLayer*, int head, int page, const float* keys, const float* values);
  // The first `columns` (a multiple of 32) of 16 rows of bf16, or of f16, `row_bytes` apart, as a bf16 panel. Null where
  // no product takes bf16.
  void (*pack_halves)(const uint8_t* rows, size_t row_bytes, int is_f16, size_t columns, uint8_t* panel);
  // A panel of f32, f16, bf16 or q8_0 as one of q5_0, and of each of its 16 rows the squared norm of what that is off by
  // and of what it holds.
  void (*screen_panel)(const Matrix*, int panel, uint8_t* out, float* error, float* norm);
  // Whether any of 16 logits + rest + error * reach is NaN or not below floor; rest may be null.
  int (*screen_passes)(const float* logits, const float* rest, const float* error, float reach, float floor);
};
enum Elementwise : int { kAdd, kMultiply, kSilu, kSiluMultiply, kCopy };

}  // namespace cacheir

extern "C" {
const cacheir::KernelTable* cacheir_kernels_scalar(void);
const cacheir::KernelTable* cacheir_kernels_avx2(void);
const cacheir::KernelTable* cacheir_kernels_avx512(void);
const cacheir::KernelTable* cacheir_kernels_avx512_vnni(void);
}
