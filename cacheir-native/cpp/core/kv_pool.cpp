// Storage [page][layer][head]{keys, values, scales}: a page of a head is one piece of memory, and a page of all layers is
// another, so that a short sequence touches few huge pages. [layer][page] would touch one or two for each layer.
#include "core/kv_pool.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace cacheir {
namespace {
constexpr size_t kCacheSpan = 65536;  // the sets of a second-level cache repeat after so many bytes or a multiple
}

KvPool::KvPool(const KernelTable& table, KvFormat format, int layers, int heads, int head_dim, int pages, int page_tokens)
    : table_(&table), format_(format), layers_(layers), heads_(heads), head_dim_(head_dim), pages_(pages), page_tokens_(page_tokens) {
  if (layers < 1 || heads < 1 || head_dim < 1 || pages < 1)
    throw std::invalid_argument("a KV pool needs at least one layer, head, dimension and page");
  if (page_tokens < 16 || page_tokens % 16) throw std::invalid_argument("page_tokens must be a multiple of 16");
  // Both bounds are far beyond any machine; below them no product of the sizes wraps.
  constexpr double most_bytes = 1LL << 46, most_elements = 1 << 30;
  const double elements = (head_dim + 16.0) * heads;
  if (elements > most_elements || elements * 8 * page_tokens * layers * pages > most_bytes)
    throw std::invalid_argument("a KV pool of " + std::to_string(pages) + " pages, " + std::to_string(layers) + " layers and " + std::to_string(heads) + " heads of " +
                                std::to_string(head_dim) + " dimensions fits no memory");
  const size_t bytes = format == KvFormat::f32 ? 4 : format == KvFormat::int8 ? 1 : 2;
  const size_t tokens = static_cast<size_t>(page_tokens), dim = static_cast<size_t>(head_dim), padded = round_up(dim, 16);
  value_offset_ = round_up(tokens * dim * bytes, 64);
  scale_offset_ = round_up(value_offset_ + tokens * padded * bytes, 64);
  head_stride_ = scale_offset_ + (format == KvFormat::int8 ? round_up(tokens * 8, 64) : 0);
  layer_stride_ = head_stride_ * static_cast<size_t>(heads);
  page_stride_ = layer_stride_ * static_cast<size_t>(layers);
  // A piece more, where else all pages of a head began in the same sets of a cache.
  if (page_stride_ % kCacheSpan == 0) page_stride_ += head_stride_;
  memory_ = HugeMemory(page_stride_ * static_cast<size_t>(pages));
}

KvLayer KvPool::layer(int row) const {
  return {format_,
          memory_.data() + layer_stride_ * static_cast<size_t>(row),
          page_stride_,
          head_stride_,
          value_offset_,
          scale_offset_,
          scale_offset_ + static_cast<size_t>(page_tokens_) * 4,
          page_tokens_,
          head_dim_,
          static_cast<int>(round_up(static_cast<size_t>(head_dim_), 16))};
}

void KvPool::copy_page(int source, int target) {
  uint8_t* base = memory_.data();
  std::memmove(base + page_stride_ * static_cast<size_t>(target), base + page_stride_ * static_cast<size_t>(source), page_stride_);
}

void KvPool::read_page(int page, float* out) const {
  const size_t part = static_cast<size_t>(page_tokens_) * static_cast<size_t>(head_dim_);
  for (int l = 0; l < layers_; ++l) {
    const KvLayer kv = layer(l);
    float* keys = out + static_cast<size_t>(l) * 2 * static_cast<size_t>(heads_) * part;
    for (int h = 0; h < heads_; ++h)
      table_->unpack_keys(&kv, h, page, keys + static_cast<size_t>(h) * part, keys + static_cast<size_t>(heads_ + h) * part);
  }
}

void KvPool::write_page(int page, const float* data) {
  const size_t part = static_cast<size_t>(page_tokens_) * static_cast<size_t>(head_dim_);
  for (int l = 0; l < layers_; ++l) {
    const KvLayer kv = layer(l);
    const float* keys = data + static_cast<size_t>(l) * 2 * static_cast<size_t>(heads_) * part;
    for (int h = 0; h < heads_; ++h)
      table_->pack_keys(&kv, h, page, keys + static_cast<size_t>(h) * part, keys + static_cast<size_t>(heads_ + h) * part);
  }
}

}  // namespace cacheir
