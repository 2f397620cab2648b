// The dialect "cacheir" of MLIR, and the function that registers it.
#pragma once
#include <mlir/IR/Dialect.h>

namespace cacheir {

// Operations are admitted unregistered so far: a module printed by CacheIR's exporters parses, nothing verifies it.
class CacheIRDialect : public mlir::Dialect {
 public:
  explicit CacheIRDialect(mlir::MLIRContext* context);
  static llvm::StringRef getDialectNamespace() { return "cacheir"; }
};

void register_dialect(mlir::DialectRegistry& registry);

}  // namespace cacheir
