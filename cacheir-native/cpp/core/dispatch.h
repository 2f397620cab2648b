// Which instruction sets this CPU and operating system run, and the table in use.
#pragma once
#include <string>
#include <vector>

#include "cacheir_native/kernel_table.h"

namespace cacheir {

// Tables that can run here, best first; the last is always "scalar".
const std::vector<const KernelTable*>& supported_tables();

// The best table, or the one that CACHEIR_NATIVE_ISA names. Throws std::runtime_error with a sentence where that name
// is unknown or this machine cannot run it.
const KernelTable& chosen_table();

}  // namespace cacheir
