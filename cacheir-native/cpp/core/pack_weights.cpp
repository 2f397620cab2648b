// Decodes 16 rows block by block and lays their codes and scales out as kernels read them (formats.h).
#include "core/pack_weights.h"

#include <algorithm>
#include <cstring>

#include "core/dispatch.h"
#include "core/eight_bytes.h"
#include "core/half.h"
#include "core/stored_blocks.h"

namespace cacheir {
namespace {

// Codes of one block as [8 groups][16 rows][4].
using Groups = uint8_t[512];

void write_nibbles(const Groups& g, uint8_t* out) {
  for (int i = 0; i < 256; i += 8) put_eight(out + i, (eight(g + i) & each(15)) | (eight(g + 256 + i) & each(15)) << 4);
}

// `width` bits from bit `bit` of each group's codes, 8 / width groups a word.
template <int bit, int width>
void write_bits(const Groups& g, uint8_t* out) {
  constexpr int groups = 8 / width;
  for (int word = 0; word < width; ++word)
    for (int i = 0; i < 64; i += 8) {
      uint64_t bits = 0;
      for (int j = 0; j < groups; ++j) bits |= (eight(g + 64 * (groups * word + j) + i) >> bit & each((1 << width) - 1)) << width * j;
      put_eight(out + 64 * word + i, bits);
    }
}

void write_codes(Panel format, const Groups& g, uint8_t* out) {
  switch (format) {
    case Panel::q8_0: std::memcpy(out, g, 512); return;
    case Panel::q2_k: write_bits<0, 2>(g, out); return;
    case Panel::q3_k:
      write_bits<0, 2>(g, out);
      write_bits<2, 1>(g, out + 128);
      return;
    case Panel::q6_k:
      write_nibbles(g, out);
      write_bits<4, 2>(g, out + 256);
      return;
    case Panel::q5_0: case Panel::q5_1: case Panel::q5_k:
      write_nibbles(g, out);
      write_bits<4, 1>(g, out + 256);
      return;
    default: write_nibbles(g, out);
  }
}

uint8_t code_at(Panel format, const uint8_t* block, int row, int k) {
  const int group = k / 4, i = row * 4 + k % 4;
  if (format == Panel::q8_0) return block[64 * group + i];
  const auto pair = [&](const uint8_t* p) { return p[group / 4 * 64 + i] >> 2 * (group % 4) & 3; };
  const auto single = [&](const uint8_t* p) { return p[i] >> group & 1; };
  if (format == Panel::q2_k) return static_cast<uint8_t>(pair(block));
  if (format == Panel::q3_k) return static_cast<uint8_t>(pair(block) | single(block + 128) << 2);
  const int low = group < 4 ? block[64 * group + i] & 15 : block[64 * (group - 4) + i] >> 4;
  if (format == Panel::q6_k) return static_cast<uint8_t>(low | pair(block + 256) << 4);
  if (code_bytes(format) == 320) return static_cast<uint8_t>(low | single(block + 256) << 4);
  return static_cast<uint8_t>(low);
}

void put16(uint8_t* at, size_t index, uint16_t value) { std::memcpy(at + 2 * index, &value, 2); }
uint16_t get16(const uint8_t* at, size_t index) {
  uint16_t value;
  std::memcpy(&value, at + 2 * index, 2);
  return value;
}

uint16_t u16(const uint8_t* p) { return get16(p, 0); }
uint32_t word(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}
void put_word(uint8_t* at, uint32_t value) { std::memcpy(at, &value, 4); }

// Whole panels of formats whose stored words are a panel's, or nearly so: 16 rows' words are put side by side.
template <Panel format>
void pack_words(const StoredMatrix& from, int first_row, uint8_t* panel) {
  constexpr size_t words = format == Panel::q8_0 ? 8 : 4, head = has_minimum(format) ? 4 : 2;
  const size_t count = static_cast<size_t>(from.columns / kBlock), bytes = block_bytes(from.format);
  const uint8_t* first = from.data + static_cast<size_t>(first_row) * count * bytes;
  for (size_t c = 0; c < count; ++c) {
    uint8_t* block = panel + block_offset(format, c);
    uint8_t* scale_part = block + code_bytes(format);
    for (size_t r = 0; r < kPanelRows; ++r) {
      const uint8_t* stored = first + (r * count + c) * bytes;
      for (size_t g = 0; g < words; ++g)
        put_word(block + 64 * g + 4 * r, word(stored + head + 4 * g) ^ (format == Panel::q8_0 ? 0x80808080u : 0u));
      put16(scale_part, r, u16(stored));
      if (has_minimum(format)) put16(scale_part + scale_bytes(format), r, u16(stored + 2));
    }
  }
}

template <Panel format>
void pack_integer(const StoredMatrix& from, int first_row, uint8_t* panel) {
  if constexpr (format == Panel::q4_0 || format == Panel::q4_1 || format == Panel::q8_0)
    if (from.rows - first_row >= kPanelRows) return pack_words<format>(from, first_row, panel);
  constexpr int blocks = is_super_block(format) ? kSuperBlock : 1, width = blocks * kBlock;  // of one stored block
  constexpr int scales = has_half_blocks(format) ? 2 : 1;                                     // of one block and row
  const size_t count = static_cast<size_t>(from.columns / width), bytes = block_bytes(from.format);
  const int rows = std::min(kPanelRows, from.rows - first_row);
  const uint8_t* first = from.data + static_cast<size_t>(first_row) * count * bytes;
  DecodedBlock decoded[kPanelRows] = {};  // rows beyond the matrix have scale 0
  Groups groups;
  for (size_t c = 0; c < count; ++c) {
    for (int r = 0; r < rows; ++r)
      decode_block(from.format, first + (static_cast<size_t>(r) * count + c) * bytes, decoded[r]);
    uint8_t* block = panel + block_offset(format, c * blocks);
    if (is_super_block(format)) {
      uint8_t* head = block - super_head_bytes(format);
      for (size_t r = 0; r < kPanelRows; ++r) put16(head, r, decoded[r].d);
      if (has_minimum(format))
        for (size_t r = 0; r < kPanelRows; ++r) put16(head + 32, r, decoded[r].dmin);
    }
    for (int s = 0; s < blocks; ++s, block += panel_block_bytes(format)) {
      for (int r = 0; r < kPanelRows; ++r)
        for (int g = 0; g < 8; ++g) std::memcpy(groups + 64 * g + 4 * r, decoded[r].codes + kBlock * s + 4 * g, 4);
      write_codes(format, groups, block);
      uint8_t *scale_part = block + code_bytes(format), *minimum_part = scale_part + scale_bytes(format);
      for (size_t r = 0; r < kPanelRows; ++r) {
        if (!is_super_block(format)) {
          put16(scale_part, r, decoded[r].d);
          if (has_minimum(format)) put16(minimum_part, r, decoded[r].dmin);
          continue;
        }
        for (int h = 0; h < scales; ++h) {
          const size_t place = static_cast<size_t>(h) * 16 + r;
          scale_part[place] = decoded[r].scales[scales * s + h];
          if (has_minimum(format)) minimum_part[place] = decoded[r].minimums[scales * s + h];
        }
      }
    }
  }
}

void pack_integer(const StoredMatrix& from, Panel format, int first_row, uint8_t* panel) {
  switch (format) {
    case Panel::q4_0: return pack_integer<Panel::q4_0>(from, first_row, panel);
    case Panel::q4_1: return pack_integer<Panel::q4_1>(from, first_row, panel);
    case Panel::q5_0: return pack_integer<Panel::q5_0>(from, first_row, panel);
    case Panel::q5_1: return pack_integer<Panel::q5_1>(from, first_row, panel);
    case Panel::q8_0: return pack_integer<Panel::q8_0>(from, first_row, panel);
    case Panel::q2_k: return pack_integer<Panel::q2_k>(from, first_row, panel);
    case Panel::q3_k: return pack_integer<Panel::q3_k>(from, first_row, panel);
    case Panel::q4_k: return pack_integer<Panel::q4_k>(from, first_row, panel);
    case Panel::q5_k: return pack_integer<Panel::q5_k>(from, first_row, panel);
    default: return pack_integer<Panel::q6_k>(from, first_row, panel);
  }
}

// 16 bits a weight: column pairs of 16 rows side by side for bf16, single columns for f16.
constexpr size_t kPiece = 512;  // columns of a row that are converted at a time, so that a panel's lines stay in the cache

// Columns from `done` on. Plain code: what the kernels do not take, and f16 panels.
void pack_halves_from(const StoredMatrix& from, Panel format, int first_row, size_t done, uint8_t* panel) {
  const size_t rows = static_cast<size_t>(std::min(kPanelRows, from.rows - first_row)), k = static_cast<size_t>(from.columns);
  for (size_t start = done; start < k; start += kPiece) {
    const size_t count = std::min(kPiece, k - start);
    for (size_t r = 0; r < rows; ++r) {
      uint16_t values[kPiece + 1];
      std::memcpy(values, from.data + ((static_cast<size_t>(first_row) + r) * k + start) * 2, count * 2);
      if (format == Panel::f16) {
        for (size_t c = 0; c < count; ++c) put16(panel, (start + c) * 16 + r, values[c]);
        continue;
      }
      if (from.format == Stored::f16)
        for (size_t c = 0; c < count; ++c) values[c] = half_to_bf16(values[c]);
      values[count] = 0;  // the partner of an odd last column
      for (size_t c = 0; c < count; c += 2) std::memcpy(panel + ((start + c) / 2 * 16 + r) * 4, values + c, 4);
    }
  }
}

void pack_halves(const StoredMatrix& from, Panel format, int first_row, uint8_t* panel) {
  const auto kernel = chosen_table().pack_halves;
  const size_t k = static_cast<size_t>(from.columns);
  size_t done = 0;
  if (kernel && format == Panel::bf16 && from.rows - first_row >= kPanelRows) {
    done = k / 32 * 32;
    kernel(from.data + static_cast<size_t>(first_row) * k * 2, k * 2, from.format == Stored::f16, done, panel);
  }
  pack_halves_from(from, format, first_row, done, panel);
}

void pack_floats(const StoredMatrix& from, int first_row, uint8_t* panel) {
  const size_t rows = static_cast<size_t>(std::min(kPanelRows, from.rows - first_row)), k = static_cast<size_t>(from.columns);
  const uint8_t* first = from.data + static_cast<size_t>(first_row) * k * 4;
  for (size_t c = 0; c < k; ++c)
    for (size_t r = 0; r < rows; ++r) std::memcpy(panel + (c * 16 + r) * 4, first + (r * k + c) * 4, 4);
}

void pack_dense(const StoredMatrix& from, Panel format, int first_row, uint8_t* panel) {
  if (from.rows - first_row < kPanelRows) std::memset(panel, 0, panel_bytes(format, from.columns));
  if (format == Panel::f32) pack_floats(from, first_row, panel);
  else pack_halves(from, format, first_row, panel);
}

}  // namespace

Panel panel_of(Stored format, bool precise, bool bf16_dot) {
  if (format == Stored::f16 && bf16_dot && !precise) return Panel::bf16;
  return static_cast<Panel>(static_cast<int>(format));
}

Act activations_of(Panel format, bool precise, bool bf16_dot) {
  if (precise) return Act::f32;
  if (is_integer(format)) return Act::int8;
  return format == Panel::bf16 && bf16_dot ? Act::bf16 : Act::f32;
}

void pack_panels(const StoredMatrix& from, const Matrix& to, int first, int last) {
  for (int p = first; p < last; ++p) {
    uint8_t* panel = const_cast<uint8_t*>(to.data) + static_cast<size_t>(p) * to.stride;
    if (is_integer(to.format)) pack_integer(from, to.format, p * kPanelRows, panel);
    else pack_dense(from, to.format, p * kPanelRows, panel);
  }
}

void unpack_row(const Matrix& m, int row, float* out) {
  const uint8_t* panel = m.data + static_cast<size_t>(row / kPanelRows) * m.stride;
  const size_t r = static_cast<size_t>(row % kPanelRows);
  if (!is_integer(m.format)) {
    for (size_t c = 0; c < static_cast<size_t>(m.columns); ++c) {
      if (m.format == Panel::f32) std::memcpy(out + c, panel + (c * 16 + r) * 4, 4);
      else if (m.format == Panel::f16) out[c] = from_half(get16(panel, c * 16 + r));
      else out[c] = from_bf16(get16(panel, c / 2 * 32 + r * 2 + c % 2));
    }
    return;
  }
  const float zero = has_minimum(m.format) ? 0.0f : static_cast<float>(1 << zero_point_log2(m.format));
  for (size_t b = 0; b < static_cast<size_t>(m.columns / kBlock); ++b) {
    const uint8_t* block = panel + block_offset(m.format, b);
    const uint8_t *scales = block + code_bytes(m.format), *minimums = scales + scale_bytes(m.format);
    const uint8_t* head = panel + block_offset(m.format, b / kSuperBlock * kSuperBlock) - super_head_bytes(m.format);
    for (size_t k = 0; k < kBlock; ++k) {
      float scale, minimum = 0;
      if (is_super_block(m.format)) {
        const size_t place = has_half_blocks(m.format) ? k / 16 * 16 + r : r;
        const uint8_t raw = scales[place];
        const int whole = has_minimum(m.format) ? raw : static_cast<int8_t>(raw);
        scale = from_half(get16(head, r)) * static_cast<float>(whole);
        if (has_minimum(m.format))
          minimum = from_half(get16(head + 32, r)) * static_cast<float>(minimums[place]);
      } else {
        scale = from_half(get16(scales, r));
        if (has_minimum(m.format)) minimum = from_half(get16(minimums, r));
      }
      const uint8_t code = code_at(m.format, block, static_cast<int>(r), static_cast<int>(k));
      // Products of a code and a scale are exact in f32, so this rounds once, as the format's definition does.
      out[b * kBlock + k] = (static_cast<float>(code) - zero) * scale + minimum;
    }
  }
}

}  // namespace cacheir
