// Filters, then Gumbel-max over the survivors; the order of sums and comparisons is that of the definition in core.
#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cacheir {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// -log(-log1p(-u)) with u = (bits + 1/2) / 2^32, each step rounded to float32.
float gumbel(uint32_t bits) {
  const float u = std::min((static_cast<float>(bits) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  const float inner = static_cast<float>(std::log1p(-static_cast<double>(u)));
  return static_cast<float>(-std::log(-static_cast<double>(inner)));
}

// No noise is larger: u is at least 2^-33.
constexpr float kMostNoise = 22.9f;

}  // namespace

void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

uint32_t philox_word(uint64_t seed, uint32_t position, uint32_t draw, uint32_t index) {
  const uint32_t counter[4] = {index / 4, position, draw, 0};
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t words[4];
  philox_block(counter, key, words);
  return words[index % 4];
}

Sampler::Sampler(int vocabulary) : vocabulary_(vocabulary) {
  const size_t n = static_cast<size_t>(vocabulary);
  z_.resize(n);
  ids_.reserve(n);
  order_.reserve(n);
  weights_.reserve(n);
}

int32_t Sampler::sample(const float* logits, const Sampling& how, int32_t position, int64_t draw, const uint32_t* mask) {
  const auto allowed = [&](int v) { return !mask || (mask[v / 32] >> v % 32 & 1); };
  int best = 0;
  float largest = -kInfinity;
  for (int v = 0; v < vocabulary_; ++v) {
    if (!allowed(v)) continue;
    if (std::isnan(logits[v])) return kNoToken;
    if (logits[v] > largest) {
      largest = logits[v];
      best = v;
    }
  }
  if (!std::isfinite(largest)) return kNoToken;
  if (!(how.temperature > 0)) return best;
  ids_.clear();
  for (int v = 0; v < vocabulary_; ++v) {
    z_[static_cast<size_t>(v)] = allowed(v) ? (logits[v] - largest) / how.temperature : -kInfinity;
    if (z_[static_cast<size_t>(v)] > -kInfinity) ids_.push_back(v);
  }
  if (how.top_k > 0 && how.top_k < static_cast<int>(ids_.size())) keep_largest(how.top_k);
  if (how.top_p < 1) keep_share(std::max(static_cast<double>(how.top_p), 0.0));
  if (how.min_p > 0) keep_likely(std::min(static_cast<double>(how.min_p), 1.0));
  return draw_token(how.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(draw));
}

// The k largest z, of equals those with the lowest ids.
void Sampler::keep_largest(int top_k) {
  order_.assign(ids_.begin(), ids_.end());
  const auto before = [&](int32_t a, int32_t b) {
    const float za = z_[static_cast<size_t>(a)], zb = z_[static_cast<size_t>(b)];
    return za > zb || (za == zb && a < b);
  };
  std::nth_element(order_.begin(), order_.begin() + top_k - 1, order_.end(), before);
  ids_.assign(order_.begin(), order_.begin() + top_k);
  std::sort(ids_.begin(), ids_.end());
}

// The fewest tokens, in order of falling z and rising id, that reach the share of the whole weight.
void Sampler::keep_share(double top_p) {
  double total = 0;
  weights_.clear();
  for (int32_t id : ids_) {
    weights_.push_back(std::exp(static_cast<double>(z_[static_cast<size_t>(id)])));
    total += weights_.back();
  }
  // Together, tokens below this weight have less than what may be left out: none can be needed, nor be sorted.
  const double least = (1 - top_p) * total / static_cast<double>(ids_.size());
  order_.clear();
  for (size_t i = 0; i < ids_.size(); ++i)
    if (weights_[i] >= least) order_.push_back(ids_[i]);
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const float za = z_[static_cast<size_t>(a)], zb = z_[static_cast<size_t>(b)];
    return za > zb || (za == zb && a < b);
  });
  double before = 0;
  size_t kept = 0;
  while (kept < order_.size() && (kept == 0 || before < top_p * total)) {
    before += std::exp(static_cast<double>(z_[static_cast<size_t>(order_[kept])]));
    ++kept;
  }
  ids_.assign(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept));
  std::sort(ids_.begin(), ids_.end());
}

void Sampler::keep_likely(double min_p) {
  std::erase_if(ids_, [&](int32_t id) { return std::exp(static_cast<double>(z_[static_cast<size_t>(id)])) < min_p; });
}

int32_t Sampler::draw_token(uint64_t seed, uint32_t position, uint32_t draw) const {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t words[4], block = ~0u;
  int32_t best = kNoToken;
  float most = -kInfinity;
  for (int32_t id : ids_) {
    const float z = z_[static_cast<size_t>(id)];
    if (z + kMostNoise < most) continue;  // no noise could make it win
    if (const uint32_t wanted = static_cast<uint32_t>(id) / 4; wanted != block) {
      const uint32_t counter[4] = {block = wanted, position, draw, 0};
      philox_block(counter, key, words);
    }
    const uint32_t bits = words[id % 4];
    // u > exp(z - most) means noise < most - z, since -log1p(-u) >= u; the margin covers float32 rounding.
    if (static_cast<float>(bits) * 0x1p-32f > 1.0001f * std::exp(z - most) + 1e-9f) continue;
    const float value = z + gumbel(bits);
    if (value > most) {
      most = value;
      best = id;
    }
  }
  return best;
}

}  // namespace cacheir
