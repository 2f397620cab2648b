// Stored matrices as panels, and single rows of panels as f32.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cacheir_native/kernel_table.h"

namespace cacheir {

// A matrix as a file has it, [rows, columns]; `data` holds rows * columns / block_columns * block_bytes bytes.
struct StoredMatrix {
  Stored format;
  const uint8_t* data;
  int rows, columns;
};

// The panel format of a stored one. f16 becomes bf16 where bf16 products run and exactness is not asked for.
Panel panel_of(Stored format, bool precise, bool bf16_dot);

// The activations that a panel meets.
Act activations_of(Panel format, bool precise, bool bf16_dot);

// Writes panels [first, last) of `to`, whose data is large enough. Rows beyond the matrix become zeros.
void pack_panels(const StoredMatrix& from, const Matrix& to, int first, int last);

// Row `row` of packed weights, f32 [columns], exactly as the stored format means it.
void unpack_row(const Matrix& matrix, int row, float* out);

}  // namespace cacheir
