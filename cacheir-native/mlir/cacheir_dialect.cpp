// Registers the dialect "cacheir" with MLIR.
#include "cacheir_dialect.h"

#include <mlir/IR/MLIRContext.h>

namespace cacheir {

CacheIRDialect::CacheIRDialect(mlir::MLIRContext* context)
    : mlir::Dialect(getDialectNamespace(), context, mlir::TypeID::get<CacheIRDialect>()) {
  allowUnknownOperations();
  allowUnknownTypes();
}

void register_dialect(mlir::DialectRegistry& registry) { registry.insert<CacheIRDialect>(); }

}  // namespace cacheir
