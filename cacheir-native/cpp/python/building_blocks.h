// Single kernels for Python: what the NumPy backend picks up, and what tests compare with formulas.
#pragma once
#include <pybind11/pybind11.h>

namespace cacheir {

void add_building_blocks(pybind11::module_& module);

}  // namespace cacheir
