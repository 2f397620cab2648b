// Anonymous memory in huge pages: weights, KV pages and the arena live here, never in a file map.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cacheir {

// One mapping, 2 MB aligned, zero at first, given back at the end. Throws std::bad_alloc.
class HugeMemory {
 public:
  HugeMemory() = default;
  explicit HugeMemory(size_t bytes);
  ~HugeMemory();
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  uint8_t* mapping_ = nullptr;
  size_t mapped_ = 0;
};

// Pieces of 64-byte alignment out of large mappings, which are reserved and only paid for when they are touched.
class HugeArena {
 public:
  uint8_t* allocate(size_t bytes);
  size_t used() const { return used_; }

 private:
  std::vector<HugeMemory> chunks_;
  size_t at_ = 0, used_ = 0;
};

}  // namespace cacheir
