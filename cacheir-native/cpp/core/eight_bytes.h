// Eight bytes at a time as one number: compilers make vectors of it on every instruction set.
#pragma once
#include <cstdint>
#include <cstring>

namespace cacheir {

inline uint64_t eight(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, 8);
  return value;
}

inline void put_eight(uint8_t* p, uint64_t value) { std::memcpy(p, &value, 8); }

// `value` in each byte.
constexpr uint64_t each(uint8_t value) { return value * 0x0101010101010101u; }

}  // namespace cacheir
