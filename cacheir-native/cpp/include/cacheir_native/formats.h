// Formats of weights: how a model file stores them, and the panels that the kernels read.
//
// Plain declarations only: the objects of all instruction sets include this file (see kernel_table.h).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cacheir {

// What a model file holds. Block formats run along the columns (the input axis) of a [rows, columns] matrix.
enum class Stored : int32_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, count };

// What a panel holds: 16 output rows. `k` counts columns, `b` blocks of 32 columns.
//   dense    f32 [k][16]   f16 [k][16]   bf16 [k/2][16][2]
//   integer  block by block, so that a product reads one stream: codes, scales [16] f16, and where there are minimums
//            minimums [16] f16; a super-block is d [16] f16 and, with minimums, dmin [16] f16, then eight blocks of codes,
//            scales [16 or 32] 8 bit and minimums the same
// Codes of one block as the integer dot product wants them: eight groups of 64 bytes, [k/4][16][4], unsigned.
// Narrow codes are bit planes of these groups: 4 bits lie as byte pairs (low half: groups 0-3, high half: 4-7), the
// fifth bit of group g is bit g of one 64-byte word, two upper bits are bits 2(g%4) of word g/4.
enum class Panel : int32_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, count };

// How activations are given to a matmul: as f32, as bf16 pairs, or as int8 with one scale for 32 columns.
enum class Act : int32_t { f32, bf16, int8 };

constexpr int kPanelRows = 16;
constexpr int kBlock = 32;

constexpr bool is_integer(Panel p) { return p >= Panel::q4_0; }
constexpr bool is_super_block(Panel p) { return p >= Panel::q2_k; }

// Bytes of the codes of one panel and block.
constexpr size_t code_bytes(Panel p) {
  switch (p) {
    case Panel::q2_k: return 128;
    case Panel::q3_k: return 192;
    case Panel::q4_0: case Panel::q4_1: case Panel::q4_k: return 256;
    case Panel::q5_0: case Panel::q5_1: case Panel::q5_k: return 320;
    case Panel::q6_k: return 384;
    case Panel::q8_0: return 512;
    default: return 0;
  }
}

// log2 of what is subtracted from each code, -1 where the format has minimums instead.
constexpr int zero_point_log2(Panel p) {
  switch (p) {
    case Panel::q3_k: return 2;
    case Panel::q4_0: return 3;
    case Panel::q5_0: return 4;
    case Panel::q6_k: return 5;
    case Panel::q8_0: return 7;
    default: return -1;
  }
}
constexpr bool has_minimum(Panel p) { return is_integer(p) && zero_point_log2(p) < 0; }
// Whether a scale covers 16 columns and not 32.
constexpr bool has_half_blocks(Panel p) { return p == Panel::q2_k || p == Panel::q3_k || p == Panel::q6_k; }

constexpr size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

constexpr int kSuperBlock = 8;  // blocks of a super-block

// Bytes of a block's scales (its minimums have as many), of a whole block, and of what stands before a super-block.
constexpr size_t scale_bytes(Panel p) { return is_super_block(p) && !has_half_blocks(p) ? 16 : 32; }
constexpr size_t panel_block_bytes(Panel p) { return code_bytes(p) + scale_bytes(p) * (has_minimum(p) ? 2 : 1); }
constexpr size_t super_head_bytes(Panel p) { return is_super_block(p) ? (has_minimum(p) ? 64 : 32) : 0; }

// Where block b of an integer panel begins.
constexpr size_t block_offset(Panel p, size_t b) {
  return b * panel_block_bytes(p) + (is_super_block(p) ? b / kSuperBlock + 1 : 0) * super_head_bytes(p);
}

// Bytes of a panel of `columns`.
constexpr size_t panel_bytes(Panel p, int columns) {
  const size_t k = static_cast<size_t>(columns), blocks = k / kBlock;
  if (p == Panel::f32) return k * 64;
  if (p == Panel::f16) return round_up(k * 32, 64);
  if (p == Panel::bf16) return (k + 1) / 2 * 64;
  const size_t supers = is_super_block(p) ? (blocks + kSuperBlock - 1) / kSuperBlock : 0;
  return round_up(blocks * panel_block_bytes(p) + supers * super_head_bytes(p), 64);
}

}  // namespace cacheir
