// The kernels of one instruction set. CMake compiles this file once for each, with CACHEIR_ISA naming it.
//
// No standard header with inline functions may be included here: the linker keeps one copy of such a function, perhaps
// this object's, and would run it on a CPU without these instructions. tests/check_symbols.cmake looks at the symbols.
#include "cacheir_native/kernel_table.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define CACHEIR_JOIN(a, b) CACHEIR_JOIN_(a, b)
#define CACHEIR_JOIN_(a, b) a##b
#define CACHEIR_TEXT(a) CACHEIR_TEXT_(a)
#define CACHEIR_TEXT_(a) #a

namespace {
using namespace cacheir;

#if defined(__AVX512F__)
#include "vec_avx512.h"
#elif defined(__AVX2__)
#include "vec_avx2.h"
#else
#include "vec_scalar.h"
#endif

#include "../kernels/math.inc"
#include "../kernels/unpack.inc"
#include "../kernels/tile_int8.inc"
#include "../kernels/tile_float.inc"
#include "../kernels/pack_rows.inc"
#include "../kernels/pack_halves.inc"
#include "../kernels/matmul.inc"
#include "../kernels/attention.inc"
#include "../kernels/attention_rounded.inc"
#include "../kernels/screen.inc"

const KernelTable table = {CACHEIR_TEXT(CACHEIR_ISA),
                           CACHEIR_HAS_BF16_DOT,
                           tile_rows,
                           pack_rows,
                           matmul,
                           swiglu,
                           argmax,
                           rms_norm,
                           rope,
                           append_kv,
                           attend,
                           merge_state,
                           finish_state,
                           elementwise,
                           largest,
                           unpack_keys,
                           pack_keys,
#if CACHEIR_HAS_BF16_DOT
                           pack_halves,
#else
                           nullptr,
#endif
                           screen_panel,
                           screen_passes};
}  // namespace

extern "C" __attribute__((visibility("default"))) const cacheir::KernelTable* CACHEIR_JOIN(cacheir_kernels_, CACHEIR_ISA)(void) {
  return &table;
}
