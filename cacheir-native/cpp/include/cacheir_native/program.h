// A program for the runner: instructions over an arena of f32 tensors, packed weights and pools of KV pages.
//
// Python builds it once (python/module.cpp: Runner.emit), every step walks it. A *place* is a byte offset into the
// arena; tensors there are f32, row-major, one row for each token (or for each head row). A *section* is a list of
// instructions: "prefill", "decode", and for each of them "MODE/head.greedy", "MODE/head.sampled", "MODE/head.logits".
#pragma once
#include <cstdint>

namespace cacheir {

enum class Opcode : int32_t {
  embedding,     // table -> out [T, H]
  rope_table,    // inverse_frequencies, magnitude -> cos, sin [T, dims / 2]
  rms_norm,      // x, width, norm, eps (, heads: so many vectors of `width` a row) -> out
  add_rms_norm,  // x, residual, norm, eps -> sum, out
  linear,        // x, weight (, norm, eps) (, bias) (, residual) -> out
  qkv,           // x, weight (, norm, eps) (, bias) (, cos, sin, dims, interleaved) -> q, and k and v or the KV pool
  rope,          // x, cos, sin, dims, interleaved, heads, head_dim -> out
  kv_append,     // k, v, group, layer
  attention,     // q, group, layer, heads, scale, window (, sinks) (, softcap) -> out
  swiglu,        // x, weight (gate and up) (, norm, eps) (, bias) (, only_next) -> out
  silu,          // x, width -> out
  silu_multiply, // x (gate), residual (up), width -> out
  add,           // x, residual, width -> out
  multiply,      // x, residual, width -> out
  copy,          // x, width -> out
  gather_rows,   // x, width, and the step's head rows -> out [R, width]
  head_argmax,   // x, weight (, bias) -> the rows' tokens
  sample,        // x (logits [R, V]), width -> the rows' tokens
  count
};

constexpr int64_t kNone = -1;

// One instruction; operands that an opcode does not name stay kNone (0 for numbers).
struct Instruction {
  Opcode opcode{};
  // Places.
  int64_t x = kNone, residual = kNone, out = kNone, sum = kNone, q = kNone, k = kNone, v = kNone, cos = kNone,
          sin = kNone;
  // Handles of Runner.add_weight and Runner.add_vector.
  int64_t weight = kNone, norm = kNone, bias = kNone, table = kNone, inverse_frequencies = kNone;
  // KV group and the row of its pool that the layer has.
  int64_t group = kNone, layer = kNone;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, dims = 0, interleaved = 0, window = 0, sinks = 0, width = 0;
  int64_t head_rows = 0;  // 1: one row for each head row of the step, not for each token
  int64_t only_next = 0;  // 1: the instruction after it alone reads what it makes
  int64_t tiles = 0;      // set by finish(): `out`, or `x`, is activations of bf16 and no rows
  double eps = 0, scale = 0, magnitude = 1, softcap = 0;
};

}  // namespace cacheir
