// Block layouts of GGML files (ggml-common.h), read without arithmetic on their values.
#include "core/stored_blocks.h"

#include <cstring>

#include "core/eight_bytes.h"

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
  for (int i = 0; i < 16; i += 8) {
    put_eight(codes + i, eight(q + i) & each(15));
    put_eight(codes + i + 16, eight(q + i) >> 4 & each(15));
  }
}

// Bit i of `word` is the fifth bit of code i.
void add_fifth_bits(const uint8_t* word, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    // Each byte of the product is the whole byte; in byte n bit n stays, and adding 127 carries it to the top.
    const uint64_t bits = word[i] * each(1) & 0x8040201008040201u;
    put_eight(codes + 8 * i, eight(codes + 8 * i) | ((bits + each(127)) >> 3 & each(16)));
  }
}

// 128 codes of two bits: bits 2p and 2p + 1 of 32 bytes are codes 32p to 32p + 31.
void bit_pairs128(const uint8_t* q, uint8_t* codes) {
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 32; i += 8) put_eight(codes + 32 * p + i, eight(q + i) >> 2 * p & each(3));
}

// 256 codes of four bits in pieces of 64: the low halves of 32 bytes, then their high halves.
void nibbles256(const uint8_t* q, uint8_t* codes) {
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 32; i += 8) {
      put_eight(codes + 64 * p + i, eight(q + 32 * p + i) & each(15));
      put_eight(codes + 64 * p + 32 + i, eight(q + 32 * p + i) >> 4 & each(15));
    }
}

// Bit p of 32 bytes becomes bit `to` of codes 32p to 32p + 31.
void add_bits256(const uint8_t* high, int to, uint8_t* codes) {
  for (int p = 0; p < 8; ++p)
    for (int i = 0; i < 32; i += 8) {
      uint8_t* at = codes + 32 * p + i;
      put_eight(at, eight(at) | (eight(high + i) >> p & each(1)) << to);
    }
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
  for (int half = 0; half < 2; ++half) bit_pairs128(b + 16 + 32 * half, out.codes + 128 * half);
  for (int i = 0; i < 16; ++i) {
    out.scales[i] = b[i] & 15;
    out.minimums[i] = b[i] >> 4;
  }
  out.d = u16(b + 80);
  out.dmin = u16(b + 82) ^ 0x8000;
}

void decode_q3_k(const uint8_t* b, DecodedBlock& out) {
  const uint8_t* s = b + 96;
  for (int half = 0; half < 2; ++half) bit_pairs128(b + 32 + 32 * half, out.codes + 128 * half);
  add_bits256(b, 2, out.codes);
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    out.scales[i] = byte((low | (s[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32);
  }
  out.d = u16(b + 108);
  out.dmin = 0;
}

void decode_q4_k(const uint8_t* b, DecodedBlock& out) {
  nibbles256(b + 16, out.codes);
  six_bit_pairs(b + 4, out.scales, out.minimums);
  out.d = u16(b);
  out.dmin = u16(b + 2) ^ 0x8000;
}

void decode_q5_k(const uint8_t* b, DecodedBlock& out) {
  nibbles256(b + 48, out.codes);
  add_bits256(b + 16, 4, out.codes);
  six_bit_pairs(b + 4, out.scales, out.minimums);
  out.d = u16(b);
  out.dmin = u16(b + 2) ^ 0x8000;
}

void decode_q6_k(const uint8_t* b, DecodedBlock& out) {
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 4; ++part)  // four bits of 64 bytes, halves first, and two bits of 32
      for (int i = 0; i < 32; i += 8) {
        const uint64_t low = eight(b + 64 * half + part % 2 * 32 + i) >> part / 2 * 4 & each(15);
        const uint64_t high = eight(b + 128 + 32 * half + i) >> 2 * part & each(3);
        put_eight(out.codes + 128 * half + 32 * part + i, low | high << 4);
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
      for (int i = 0; i < 32; i += 8) put_eight(out.codes + i, eight(b + 2 + i) ^ each(0x80));
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
