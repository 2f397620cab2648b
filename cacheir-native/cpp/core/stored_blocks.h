// How model files store weights: sizes of blocks, and one block's codes, scales and minimums.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cacheir_native/formats.h"

namespace cacheir {

std::optional<Stored> stored_format(const std::string& name);
const char* stored_name(Stored format);

// Columns of a block, and its bytes; 1 and the element's size for dense formats.
int block_columns(Stored format);
size_t block_bytes(Stored format);

// 256 columns (or 32, for the classic formats) as unsigned codes, with scales for 32 or 16 columns.
// Numbers of 16 bits are f16 as stored; minimums are added, those of super-blocks are stored negated in `dmin`.
struct DecodedBlock {
  uint8_t codes[256];
  uint8_t scales[16];    // super-blocks; two's complement in q3_k and q6_k
  uint8_t minimums[16];  // q2_k, q4_k, q5_k
  uint16_t d, dmin;      // classic: scale and minimum
};
void decode_block(Stored format, const uint8_t* block, DecodedBlock& out);

}  // namespace cacheir
