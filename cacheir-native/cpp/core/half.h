// f16 and bf16 to f32 and back, for code outside the kernels.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace cacheir {

inline float from_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, body = h & 0x7fffu;
  if (body >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (body & 0x3ffu) << 13);
  if (body >= 0x400u) return std::bit_cast<float>(sign | ((body << 13) + 0x38000000u));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(body) * 0x1p-24f) | sign);
}

inline float from_bf16(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

inline uint16_t to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

// to_bf16(from_half(h)) without branches, so that loops of it become vectors.
inline uint16_t half_to_bf16(uint16_t h) {
  const uint32_t body = h & 0x7fffu;
  // The exponent's bias is moved by a product, which is exact for subnormal numbers too.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(body << 13) * 0x1p112f);
  const uint32_t rounded = (finite + 0x7fffu + (finite >> 16 & 1u)) >> 16;
  const uint32_t special = 0x7f80u | (body & 0x3ffu) >> 3 | (body > 0x7c00u ? 0x40u : 0u);  // infinite, or a quiet NaN
  return static_cast<uint16_t>((h & 0x8000u) | (body >= 0x7c00u ? special : rounded));
}

}  // namespace cacheir
