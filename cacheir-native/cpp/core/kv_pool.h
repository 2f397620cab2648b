// The KV pages of one group of layers.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "cacheir_native/kernel_table.h"
#include "core/huge_memory.h"

namespace cacheir {

class KvPool {
 public:
  KvPool() = default;
  // page_tokens must be a multiple of 16. Throws std::invalid_argument, std::bad_alloc.
  KvPool(const KernelTable& table, KvFormat format, int layers, int heads, int head_dim, int pages, int page_tokens);

  KvLayer layer(int row) const;
  int layers() const { return layers_; }
  int heads() const { return heads_; }
  int head_dim() const { return head_dim_; }
  int pages() const { return pages_; }
  int page_tokens() const { return page_tokens_; }
  size_t bytes() const { return memory_.size(); }

  void copy_page(int source, int target);
  // f32 [layers][2][heads][page_tokens][head_dim] of one page.
  void read_page(int page, float* out) const;
  void write_page(int page, const float* data);

 private:
  const KernelTable* table_ = nullptr;
  KvFormat format_{};
  int layers_ = 0, heads_ = 0, head_dim_ = 0, pages_ = 0, page_tokens_ = 0;
  size_t head_stride_ = 0, page_stride_ = 0, layer_stride_ = 0, value_offset_ = 0, scale_offset_ = 0;
  HugeMemory memory_;
};

}  // namespace cacheir
