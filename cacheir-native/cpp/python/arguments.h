// Python values as the runner's: arrays of weights, operands of instructions, rows of a step.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "cacheir_native/runner.h"

namespace cacheir {

// One (format, array, rows, columns); keeps the array alive. Throws std::invalid_argument where sizes disagree.
struct GivenMatrix {
  StoredMatrix matrix;
  pybind11::array keep;
};
GivenMatrix matrix_of(const pybind11::handle& given);

// An instruction from its opcode's name and keyword operands.
Instruction instruction_of(const std::string& opcode, const pybind11::dict& operands);

// Fills the runner's step from objects with the attributes of cacheir.runtime.executor.Row.
void stage_rows(Runner& runner, const pybind11::sequence& rows);

KvFormat kv_format(const std::string& name);

}  // namespace cacheir
