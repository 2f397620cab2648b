// Block layouts of GGML files (ggml-common.h), read without arithmetic on their values.
#include "core/stored_blocks.h"

#include <cstring>

namespace cacheir {
namespace {

struct Named {
  const char* name;
  int columns;
  size_t bytes;
};
constexpr Named kStored[] = {{"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},   {"q4_0", 32, 18}, {"q4_1", 32, 20},
                             {"q5_0", 32, 22}, {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q2_k", 256, 84}, {"q3_k", 256, 110},
                             {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}};

uint16_t u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
uint8_t byte(int x) { return static_cast<uint8_t>(x); }

void nibbles32(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* word, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = byte(codes[i] | (word[i / 8] >> i % 8 & 1) << 4);
}

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes.
void six_bit_pairs(const uint8_t* s, uint8_t* scales, uint8_t* minimums) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = s[j] & 63;
    minimums[j] = s[j + 4] & 63;
    scales[j + 4] = byte((s[j + 8] & 15) | (s[j] >> 6) << 4);
    minimums[j + 4] = byte(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
  }
}

void decode_q2_k(const uint8_t* b, DecodedBlock& out) {
  const uint8_t* q = b + 16;
  for (int e = 0; e < 256; ++e) out.codes[e] = q[e / 128 * 32 + e % 32] >> 2 * (e % 128 / 32) & 3;
  for (int i = 0; i < 16; ++i) {
    out.scales[i] = b[i] & 15;
    out.minimums[i] = b[i] >> 4;
  }
  out.d = u16(b + 80);
  out.dmin = u16(b + 82) ^ 0x8000;
}

void decode_q3_k(const uint8_t* b, DecodedBlock& out) {
  const uint8_t *high = b, *q = b + 32, *s = b + 96;
  for (int e = 0; e < 256; ++e) {
    const int low = q[e / 128 * 32 + e % 32] >> 2 * (e % 128 / 32) & 3;
    out.codes[e] = byte(low | (high[e % 32] >> e / 32 & 1) << 2);
  }
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    out.scales[i] = byte((low | (s[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
  }
  out.d = u16(b + 108);
  out.dmin = 0;
}

void decode_q4_k(const uint8_t* b, DecodedBlock& out) {
  const uint8_t* q = b + 16;
  for (int e = 0; e < 256; ++e) out.codes[e] = e % 64 < 32 ? q[e / 64 * 32 + e % 32] & 15 : q[e / 64 * 32 + e % 32] >> 4;
  six_bit_pairs(b + 4, out.scales, out.minimums);
  out.d = u16(b);
  out.dmin = u16(b + 2) ^ 0x8000;
}

void decode_q5_k(const uint8_t* b, DecodedBlock& out) {
  const uint8_t *high = b + 16, *q = b + 48;
  for (int e = 0; e < 256; ++e) {
    const int low = e % 64 < 32 ? q[e / 64 * 32 + e % 32] & 15 : q[e / 64 * 32 + e % 32] >> 4;
    out.codes[e] = byte(low | (high[e % 32] >> e / 32 & 1) << 4);
  }
  six_bit_pairs(b + 4, out.scales, out.minimums);
  out.d = u16(b);
  out.dmin = u16(b + 2) ^ 0x8000;
}

void decode_q6_k(const uint8_t* b, DecodedBlock& out) {
  for (int e = 0; e < 256; ++e) {
    const int part = e % 128 / 32, l = e % 32;
    const uint8_t low = b[e / 128 * 64 + part % 2 * 32 + l], high = b[128 + e / 128 * 32 + l];
    out.codes[e] = byte((part < 2 ? low & 15 : low >> 4) | (high >> 2 * part & 3) << 4);
  }
  std::memcpy(out.scales, b + 192, 16);
  out.d = u16(b + 208);
  out.dmin = 0;
}

}  // namespace

std::optional<Stored> stored_format(const std::string& name) {
  for (int i = 0; i < static_cast<int>(Stored::count); ++i)
    if (name == kStored[i].name) return static_cast<Stored>(i);
  return std::nullopt;
}

const char* stored_name(Stored format) { return kStored[static_cast<int>(format)].name; }
int block_columns(Stored format) { return kStored[static_cast<int>(format)].columns; }
size_t block_bytes(Stored format) { return kStored[static_cast<int>(format)].bytes; }

void decode_block(Stored format, const uint8_t* b, DecodedBlock& out) {
  switch (format) {
    case Stored::q4_0:
      nibbles32(b + 2, out.codes);
      break;
    case Stored::q4_1:
      nibbles32(b + 4, out.codes);
      break;
    case Stored::q5_0:
      nibbles32(b + 6, out.codes);
      add_fifth_bits(b + 2, out.codes);
      break;
    case Stored::q5_1:
      nibbles32(b + 8, out.codes);
      add_fifth_bits(b + 4, out.codes);
      break;
    case Stored::q8_0:
      for (int i = 0; i < 32; ++i) out.codes[i] = b[2 + i] ^ 0x80;
      break;
    case Stored::q2_k: return decode_q2_k(b, out);
    case Stored::q3_k: return decode_q3_k(b, out);
    case Stored::q4_k: return decode_q4_k(b, out);
    case Stored::q5_k: return decode_q5_k(b, out);
    case Stored::q6_k: return decode_q6_k(b, out);
    default: break;
  }
  out.d = u16(b);
  out.dmin = format == Stored::q4_1 || format == Stored::q5_1 ? u16(b + 2) : uint16_t{0};
}

}  // namespace cacheir
