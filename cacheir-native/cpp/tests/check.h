// What the C++ tests share: a check that counts failures, random numbers, random stored weights.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "core/half.h"
#include "core/huge_memory.h"
#include "core/pack_weights.h"
#include "core/stored_blocks.h"

namespace check {

inline int failures = 0;

#define CHECK(condition, ...)                                        \
  do {                                                               \
    if (!(condition) && ++check::failures <= 40) {                   \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);    \
      std::printf(__VA_ARGS__);                                      \
      std::printf("\n");                                             \
    }                                                                \
  } while (false)

inline int result(const char* name) {
  std::printf("%s: %s (%d failures)\n", name, failures ? "FAILED" : "passed", failures);
  return failures ? 1 : 0;
}

inline std::vector<float> normal(std::mt19937& random, size_t count, float scale = 1) {
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

// Random bytes of a stored matrix whose scales are small normal numbers.
inline std::vector<uint8_t> stored(std::mt19937& random, cacheir::Stored format, int rows, int columns) {
  using cacheir::Stored;
  const size_t bytes = cacheir::block_bytes(format);
  const size_t blocks = static_cast<size_t>(rows) * static_cast<size_t>(columns / cacheir::block_columns(format));
  std::vector<uint8_t> data(blocks * bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  const auto half = [&](size_t at) {
    const uint16_t h = static_cast<uint16_t>(0x2400 + random() % 0x800 + (random() % 2) * 0x8000);  // 0.016 to 0.06
    std::memcpy(data.data() + at, &h, 2);
  };
  for (size_t b = 0; b < blocks; ++b) {
    const size_t at = b * bytes;
    switch (format) {
      case Stored::f32: {
        const float value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 997.0f;
        std::memcpy(data.data() + at, &value, 4);
        break;
      }
      case Stored::f16: half(at); break;
      case Stored::bf16: {
        const uint16_t value = cacheir::to_bf16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 997.0f);
        std::memcpy(data.data() + at, &value, 2);
        break;
      }
      case Stored::q4_1: case Stored::q5_1: case Stored::q4_k: case Stored::q5_k: half(at); half(at + 2); break;
      case Stored::q2_k: half(at + 80); half(at + 82); break;
      case Stored::q3_k: half(at + 108); break;
      case Stored::q6_k: half(at + 208); break;
      default: half(at);
    }
  }
  return data;
}

// A packed matrix with its memory.
struct Packed {
  std::vector<uint8_t> source;
  cacheir::HugeMemory memory;
  cacheir::Matrix matrix;
};

inline Packed pack(std::mt19937& random, cacheir::Stored format, cacheir::Panel panel, int rows, int columns) {
  Packed p;
  p.source = stored(random, format, rows, columns);
  const int panels = (rows + 15) / 16;
  const size_t stride = cacheir::panel_bytes(panel, columns);
  p.memory = cacheir::HugeMemory(stride * static_cast<size_t>(panels));
  p.matrix = {panel, p.memory.data(), stride, rows, columns, panels};
  cacheir::pack_panels({format, p.source.data(), rows, columns}, p.matrix, 0, panels);
  return p;
}

}  // namespace check
