// Attention over pages on every instruction set and storage format: against float64, and bit-equal however it is split.
#include <algorithm>

#include "check.h"
#include "core/dispatch.h"
#include "core/kv_pool.h"

using namespace cacheir;

namespace {

constexpr int kPages = 40, kPageTokens = 32;

struct Cache {
  KvPool pool;
  std::vector<int32_t> pages;   // of the one sequence
  std::vector<float> k, v;      // as read back, [token][head][dim]
};

Cache fill(std::mt19937& random, const KernelTable& table, KvFormat format, int heads, int dim, int tokens) {
  Cache cache{KvPool(table, format, 2, heads, dim, kPages, kPageTokens), {}, {}, {}};
  for (int p = 0; p < kPages; ++p) cache.pages.push_back(p);
  std::shuffle(cache.pages.begin(), cache.pages.end(), random);
  const size_t row = static_cast<size_t>(heads * dim);
  const std::vector<float> k = check::normal(random, row * static_cast<size_t>(tokens)), v = check::normal(random, row * static_cast<size_t>(tokens));
  std::vector<int32_t> slots;
  for (int t = 0; t < tokens; ++t) slots.push_back(cache.pages[static_cast<size_t>(t / kPageTokens)] * kPageTokens + t % kPageTokens);
  const KvLayer layer = cache.pool.layer(1);
  const AppendKv append{&layer, k.data(), v.data(), row, heads, slots.data(), 0, tokens};
  table.append_kv(&append);
  cache.k.resize(k.size());
  cache.v.resize(v.size());
  std::vector<float> keys(static_cast<size_t>(kPageTokens * dim)), values(keys.size());
  for (int h = 0; h < heads; ++h) {
    for (int p = 0; p * kPageTokens < tokens; ++p) {
      table.unpack_keys(&layer, h, cache.pages[static_cast<size_t>(p)], keys.data(), values.data());
      for (int t = p * kPageTokens; t < std::min(tokens, (p + 1) * kPageTokens); ++t)
        for (int d = 0; d < dim; ++d) {
          const size_t to = (static_cast<size_t>(t) * static_cast<size_t>(heads) + static_cast<size_t>(h)) * static_cast<size_t>(dim) + static_cast<size_t>(d);
          cache.k[to] = keys[static_cast<size_t>((t % kPageTokens) * dim + d)];
          cache.v[to] = values[static_cast<size_t>((t % kPageTokens) * dim + d)];
        }
    }
  }
  const double tolerance = format == KvFormat::f32 ? 0 : format == KvFormat::f16 ? 1e-3 : format == KvFormat::bf16 ? 8e-3 : 2e-2;
  for (size_t i = 0; i < k.size(); ++i)
    CHECK(std::fabs(k[i] - cache.k[i]) <= tolerance * 4 && std::fabs(v[i] - cache.v[i]) <= tolerance * 4, "%s stored as %d: %g became %g", table.name, static_cast<int>(format), k[i], cache.k[i]);
  return cache;
}

// `rows` queries of KV head `head` at positions; sequentially, or chunk by chunk and merged.
std::vector<float> attend(const KernelTable& table, const Cache& cache, const std::vector<int32_t>& pages, int head, const std::vector<float>& q, const std::vector<int32_t>& positions, int window, int sinks, float softcap, bool rounded, bool split) {
  const KvLayer layer = cache.pool.layer(1);
  const int dim = layer.head_dim, rows = static_cast<int>(positions.size());
  const size_t state_floats = static_cast<size_t>(layer.padded_dim) + 2;
  std::vector<float> scratch(attend_scratch_floats(dim)), states(state_floats * kMaxQueryRows), part(state_floats * kMaxQueryRows), out(static_cast<size_t>(rows * dim));
  const auto clear = [&](std::vector<float>& all) {
    std::fill(all.begin(), all.end(), 0.0f);
    for (size_t m = 0; m < kMaxQueryRows; ++m) all[m * state_floats] = -INFINITY;
  };
  const int most = rounded ? kMaxQueryRows : kExactQueryRows;
  for (int first = 0; first < rows; first += most) {
    Attend task{};
    task.kv = &layer;
    task.head = head;
    task.pages = pages.data();
    task.rows = std::min(most, rows - first);
    task.window = window;
    task.sinks = sinks;
    task.scale = 0.17f;
    task.softcap = softcap;
    task.rounded = rounded;
    task.scratch = scratch.data();
    int highest = 0;
    for (int m = 0; m < task.rows; ++m) {
      task.q[m] = q.data() + (first + m) * dim;
      task.position[m] = positions[static_cast<size_t>(first + m)];
      highest = std::max(highest, task.position[m]);
    }
    clear(states);
    const int chunks = highest / kChunkKeys + 1;
    for (int c = 0; c < chunks; c += split ? 1 : chunks) {
      std::vector<float>& into = split ? part : states;
      if (split) clear(part);
      for (int m = 0; m < task.rows; ++m) task.state[m] = into.data() + static_cast<size_t>(m) * state_floats;
      task.first_chunk = c;
      task.last_chunk = split ? c + 1 : chunks;
      table.attend(&task);
      if (split)
        for (int m = 0; m < task.rows; ++m) table.merge_state(states.data() + static_cast<size_t>(m) * state_floats, task.state[m], layer.padded_dim);
    }
    for (int m = 0; m < task.rows; ++m) table.finish_state(states.data() + static_cast<size_t>(m) * state_floats, out.data() + (first + m) * dim, dim);
  }
  return out;
}

// In the rounded form the oracle takes rounded queries, keys and values; weights may err by half a unit of bf16.
void check_attention(std::mt19937& random, const KernelTable& table, KvFormat format, int dim, int window, int sinks, bool rounded) {
  const float softcap = window ? 1.5f : 0.0f;
  const int heads = 2, tokens = 300 + static_cast<int>(random() % 90), rows = rounded ? 65 : 23;
  const auto rounds = [&](float x, bool does) { return static_cast<double>(rounded && does ? from_bf16(to_bf16(x)) : x); };
  const bool rounds_cache = format != KvFormat::int8;  // codes are bf16 numbers
  const Cache cache = fill(random, table, format, heads, dim, tokens);
  const std::vector<float> q = check::normal(random, static_cast<size_t>(rows * dim));
  std::vector<int32_t> positions;
  for (int m = 0; m < rows; ++m) positions.push_back(m < 3 ? m : static_cast<int32_t>(random() % static_cast<unsigned>(tokens)));
  const std::vector<float> got = attend(table, cache, cache.pages, 1, q, positions, window, sinks, softcap, rounded, false);
  for (int m = 0; m < rows; ++m) {
    const int last = positions[static_cast<size_t>(m)], first = window ? std::max(0, last - window + 1) : 0;
    std::vector<double> score;
    double top = -1e300, sum = 0;
    const auto key = [&](int t, int d) { return (static_cast<size_t>(t) * heads + 1) * static_cast<size_t>(dim) + static_cast<size_t>(d); };
    std::vector<int> seen;
    for (int t = 0; t <= last; ++t)
      if (t >= first || t < sinks) seen.push_back(t);
    for (const int t : seen) {
      double s = 0;
      for (int d = 0; d < dim; ++d) s += rounds(q[static_cast<size_t>(m * dim + d)], true) * rounds(cache.k[key(t, d)], rounds_cache);
      score.push_back(softcap > 0 ? softcap * std::tanh(s * 0.17f / softcap) : s * 0.17f);
      top = std::max(top, score.back());
    }
    for (double& s : score) sum += s = std::exp(s - top);
    for (int d = 0; d < dim; ++d) {
      double expected = 0, size = 0;
      for (size_t n = 0; n < seen.size(); ++n) {
        const int t = seen[n];
        const double part = score[n] / sum * rounds(cache.v[key(t, d)], rounds_cache);
        expected += part;
        size += std::fabs(part);
      }
      const float value = got[static_cast<size_t>(m * dim + d)];
      CHECK(std::fabs(value - expected) < 2e-5 + (rounded ? size / 256 : 0), "%s format %d dim %d window %d sinks %d rounded %d position %d: %g, not %g", table.name, static_cast<int>(format), dim, window, sinks, rounded, last, value, expected);
    }
    std::vector<int32_t> kept = cache.pages;  // without those that the row does not see
    for (int p = 0; p < kPages; ++p)
      if (window && (p + 1) * kPageTokens <= first && p * kPageTokens >= sinks) kept[static_cast<size_t>(p)] = -1;
    const std::vector<float> one(q.begin() + m * dim, q.begin() + (m + 1) * dim);
    for (bool split : {false, true}) {
      const std::vector<float> alone = attend(table, cache, kept, 1, one, {last}, window, sinks, softcap, rounded, split);
      CHECK(std::memcmp(alone.data(), got.data() + m * dim, static_cast<size_t>(dim) * 4) == 0, "%s format %d dim %d window %d sinks %d rounded %d: position %d alone differs (split %d)", table.name, static_cast<int>(format), dim, window, sinks, rounded, last, split);
    }
  }
}

}  // namespace

int main() {
  std::mt19937 random(std::random_device{}());
  for (const KernelTable* table : supported_tables())
    for (int f = 0; f < 4; ++f)
      for (int dim : {64, 80, 20, 15})
        for (int window : {0, 100})
          for (int sinks : {0, 4, 150})
            for (bool rounded : {false, true})
              if ((!rounded || table->bf16_dot) && (window || !sinks)) check_attention(random, *table, static_cast<KvFormat>(f), dim, window, sinks, rounded);
  return check::result("attention");
}
