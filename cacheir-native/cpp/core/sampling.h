// A token of one row of logits, as cacheir.reference.sampling defines it.
#pragma once
#include <cstdint>
#include <vector>

#include "cacheir_native/step.h"

namespace cacheir {

constexpr int32_t kNoToken = -1;

// Word `index` of the Philox 4x32-10 stream of (seed, position, draw): word index % 4 of block index / 4.
uint32_t philox_word(uint64_t seed, uint32_t position, uint32_t draw, uint32_t index);

// The four words of a block.
void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

// Memory that sampling needs, for a vocabulary; nothing is allocated later.
class Sampler {
 public:
  explicit Sampler(int vocabulary);
  // logits [V], mask [ceil(V / 32)] or null; kNoToken where no token may be chosen or a logit is NaN or +infinity.
  int32_t sample(const float* logits, const Sampling& how, int32_t position, int64_t draw, const uint32_t* mask);

 private:
  void keep_largest(int top_k);
  void keep_share(double top_p);
  void keep_likely(double min_p);
  int32_t draw_token(uint64_t seed, uint32_t position, uint32_t draw) const;

  int vocabulary_;
  std::vector<float> z_;
  std::vector<int32_t> ids_;  // survivors, rising
  std::vector<int32_t> order_;
  std::vector<double> weights_;
};

}  // namespace cacheir
