// Memory for the packed activations of one matmul.
#pragma once
#include <cstddef>

#include "cacheir_native/kernel_table.h"
#include "core/huge_memory.h"

namespace cacheir {

class ActivationBuffer {
 public:
  // Room for `rows` rows of up to `columns` columns of any kind.
  void reserve(HugeArena& arena, size_t rows, size_t columns) {
    const size_t blocks = rows * ((columns + kBlock - 1) / kBlock);
    codes_ = arena.allocate(rows * (columns + 1) * 4);
    scale_ = reinterpret_cast<float*>(arena.allocate(blocks * 4));
    scaled_sum_ = reinterpret_cast<float*>(arena.allocate(blocks * 4));
    for (int32_t*& sums : sums_) sums = reinterpret_cast<int32_t*>(arena.allocate(blocks * 4));
  }

  Activations view(Act kind, int rows, int columns) const {
    return {kind, rows, columns, codes_, scale_, scaled_sum_, sums_[0], sums_[1], sums_[2]};
  }

 private:
  uint8_t* codes_ = nullptr;
  float *scale_ = nullptr, *scaled_sum_ = nullptr;
  int32_t* sums_[3] = {};
};

}  // namespace cacheir
