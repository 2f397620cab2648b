// CPUID says what the CPU has, XGETBV what the operating system saves and restores: both are needed.
#include "core/dispatch.h"

#include <cpuid.h>

#include <cstdlib>
#include <stdexcept>

namespace cacheir {
namespace {

struct CpuFeatures {
  bool avx2 = false, avx512 = false, avx512_vnni = false;
};

unsigned long long enabled_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<unsigned long long>(high) << 32 | low;
}

CpuFeatures detect() {
  CpuFeatures has;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return has;
  const bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C, avx = c & bit_AVX;
  if (!osxsave || !avx) return has;
  const unsigned long long state = enabled_state();
  if ((state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
  const unsigned most = a;
  has.avx2 = fma && f16c && (b & bit_AVX2);
  const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  has.avx512 = has.avx2 && (state & 0xe6) == 0xe6 && (b & wanted) == wanted;
  const bool vnni = c & bit_AVX512VNNI;
  constexpr unsigned bf16_bit = 1u << 5;
  const bool bf16 = most >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bf16_bit);
  has.avx512_vnni = has.avx512 && vnni && bf16;
  return has;
}

struct Known {
  const char* name;
  const KernelTable* (*table)();
  bool runs_here;
};

std::vector<Known> known_tables() {
  const CpuFeatures has = detect();
  return {{"avx512_vnni", cacheir_kernels_avx512_vnni, has.avx512_vnni},
          {"avx512", cacheir_kernels_avx512, has.avx512},
          {"avx2", cacheir_kernels_avx2, has.avx2},
          {"scalar", cacheir_kernels_scalar, true}};
}

const KernelTable& choose() {
  const char* forced = std::getenv("CACHEIR_NATIVE_ISA");
  if (!forced || !*forced) return *supported_tables().front();
  std::string names;
  for (const Known& known : known_tables()) {
    if (std::string(known.name) == forced) {
      if (known.runs_here) return *known.table();
      throw std::runtime_error(std::string("CACHEIR_NATIVE_ISA asks for ") + forced +
                               ", which this CPU or operating system cannot run");
    }
    names += names.empty() ? known.name : std::string(", ") + known.name;
  }
  throw std::runtime_error(std::string("CACHEIR_NATIVE_ISA is '") + forced + "', which is none of " + names);
}

}  // namespace

const std::vector<const KernelTable*>& supported_tables() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found;
    for (const Known& known : known_tables())
      if (known.runs_here) found.push_back(known.table());
    return found;
  }();
  return tables;
}

const KernelTable& chosen_table() { return choose(); }

}  // namespace cacheir
