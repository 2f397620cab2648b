// Anonymous mappings with transparent huge pages.
#include "core/huge_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CACHEIR_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define CACHEIR_ADDRESS_SANITIZER 1
#endif
#if CACHEIR_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace cacheir {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
size_t up(size_t n, size_t step) { return (n + step - 1) / step * step; }

// Under AddressSanitizer what lies after a piece is forbidden, as it is after a piece of the heap.
#if CACHEIR_ADDRESS_SANITIZER
constexpr size_t kChunk = size_t{4} << 20;  // forbidding costs by the byte
constexpr size_t kForbidden = 64;
void forbid(const void* from, size_t bytes) { __asan_poison_memory_region(from, bytes); }
void allow(const void* from, size_t bytes) { __asan_unpoison_memory_region(from, bytes); }
#else
constexpr size_t kChunk = size_t{256} << 20;
constexpr size_t kForbidden = 0;
void forbid(const void*, size_t) {}
void allow(const void*, size_t) {}
#endif
}  // namespace

HugeMemory::HugeMemory(size_t bytes) {
  if (bytes == 0) return;
  if (bytes > (size_t{1} << 46)) throw std::bad_alloc();
  size_ = bytes;
  // Kernels prefetch a little past the end; the slack keeps that inside.
  const size_t wanted = up(bytes + 8192, kHugePage);
  mapped_ = wanted + kHugePage;
  void* got = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<uint8_t*>(got);
  data_ = reinterpret_cast<uint8_t*>(up(reinterpret_cast<uintptr_t>(got), kHugePage));
  if (bytes >= kHugePage) madvise(data_, wanted, MADV_HUGEPAGE);  // refused where the system has none: not an error
  forbid(data_ + bytes, static_cast<size_t>(mapping_ + mapped_ - data_) - bytes);
}

HugeMemory::~HugeMemory() {
  if (!mapping_) return;
  allow(mapping_, mapped_);
  munmap(mapping_, mapped_);
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

uint8_t* HugeArena::allocate(size_t bytes) {
  const size_t asked = std::max<size_t>(bytes, 1);
  bytes = up(asked, 64);
  if (chunks_.empty() || at_ + bytes + kForbidden > chunks_.back().size()) {
    chunks_.emplace_back(std::max(bytes + kForbidden, kChunk));
    at_ = 0;
  }
  uint8_t* piece = chunks_.back().data() + at_;
  forbid(piece + asked, bytes + kForbidden - asked);
  at_ += bytes + kForbidden;
  used_ += bytes;
  return piece;
}

}  // namespace cacheir
