// Opcodes by name.
#pragma once
#include <optional>
#include <string>

#include "cacheir_native/program.h"

namespace cacheir {

inline constexpr const char* kOpcodeNames[] = {"embedding", "rope_table", "rms_norm", "add_rms_norm", "linear", "qkv",
                                               "rope", "kv_append", "attention", "swiglu", "silu", "silu_multiply",
                                               "add", "multiply", "copy", "gather_rows", "head_argmax", "sample"};
static_assert(sizeof kOpcodeNames / sizeof *kOpcodeNames == static_cast<size_t>(Opcode::count));

inline const char* opcode_name(Opcode opcode) { return kOpcodeNames[static_cast<int>(opcode)]; }

inline std::optional<Opcode> opcode_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(Opcode::count); ++i)
    if (name == kOpcodeNames[i]) return static_cast<Opcode>(i);
  return std::nullopt;
}

}  // namespace cacheir
