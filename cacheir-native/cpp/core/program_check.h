// Checks a program's operands before anything runs, and says how much workspace it needs.
#pragma once
#include <cstddef>
#include <vector>

namespace cacheir {

class Runner;

// Attention of a step with fewer tasks than this for each worker is split by chunks of keys too.
inline constexpr int kFewTasks = 4;

struct Needs {
  size_t columns = 0;         // of the widest activations
  size_t qkv_columns = 0;     // of the widest qkv result
  size_t attend_floats = 0;   // scratch of a worker in attention, states included
  size_t partial_floats = 0;  // states of all chunks of a step that splits by chunks
  std::vector<int> windows;   // of each KV group
  std::vector<int> sinks;     // ... the most of any layer
  bool samples = false;
};

// Throws std::invalid_argument that names the section, the instruction and the operand.
Needs check_program(const Runner& runner);

}  // namespace cacheir
