// One step's data: what each row feeds and wants, and the arrays that instructions read.
#pragma once
#include <cstdint>
#include <vector>

namespace cacheir {

enum class Want : int32_t { nothing, token, logprobs, logits, hidden };

struct Sampling {
  float temperature = 0, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
};

// A row of a step; see cacheir.runtime.executor.Row. Arrays lie in the Step, by offset.
struct StepRow {
  int32_t slot = 0, position = 0, tokens = 0;
  Want want = Want::token;
  int32_t first_head_row = 0, head_rows = 0;
  int64_t draw = 0;
  Sampling sampling;
  bool masked = false;
};

struct GroupInputs {
  std::vector<int32_t> slots, page_table, lengths;  // [T], [B][width], [B]
  int32_t width = 0;
};

struct Step {
  std::vector<StepRow> rows;
  std::vector<int32_t> tokens, positions, row_starts, head_rows;
  std::vector<int32_t> owners;   // row of each head row
  std::vector<uint32_t> masks;   // [B][ceil(V / 32)], all ones where a row has none
  std::vector<GroupInputs> groups;
};

}  // namespace cacheir
