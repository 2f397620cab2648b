// Instructions that multiply by weights: linear, qkv, swiglu, head_argmax.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/executor.h"

namespace cacheir {
namespace {

// Rows that every worker packs for itself: cheaper than a barrier.
constexpr int kOwnRows = 4;

// Panels that kernels take at once: shares are multiples of it.
int panel_step(const Matrix& m) { return is_integer(m.format) ? 1 : 4; }

}  // namespace

Activations Executor::pack(const Instruction& i, const float* x, int columns, Act kind, int n) {
  const float* norm = values(i.norm);
  const size_t stride = static_cast<size_t>(columns);
  float* scratch = r.scratch_[static_cast<size_t>(worker)];
  if (n <= kOwnRows) {
    Activations to = r.own_[static_cast<size_t>(worker)].view(kind, n, columns);
    const PackRows task{x, stride, norm, static_cast<float>(i.eps), scratch, &to, 0, n};
    r.table_.pack_rows(&task);
    return to;
  }
  Activations to = r.shared_.view(kind, n, columns);
  const int step = r.table_.tile_rows(kind, kMaxTileRows);  // the largest tile: every multiple of it begins one
  while (true) {
    const auto [first, part] = r.pool_.next_piece(n, step);
    if (part == 0) break;
    const PackRows task{x, stride, norm, static_cast<float>(i.eps), scratch, &to, first, first + part};
    r.table_.pack_rows(&task);
  }
  r.pool_.barrier();
  return to;
}

// What the swiglu before it left in the place of x.
Activations Executor::tiles(const Instruction& i, int columns, int n) const {
  return {Act::bf16, n, columns, at(i.x), nullptr, nullptr, nullptr, nullptr, nullptr};
}

// x times all parts of a stack, to out [n][w.rows]; parts that take one kind of activations are one phase.
void Executor::stack(const Instruction& i, int n, float* out, const float* residual) {
  const Weight& w = r.weights_[static_cast<size_t>(i.weight)];
  const size_t stride = static_cast<size_t>(w.rows);
  const float* bias = values(i.bias);
  for (size_t begin = 0, end; begin < w.parts.size(); begin = end) {
    int panels = 0, step = 1;
    for (end = begin; end < w.parts.size() && w.kinds[end] == w.kinds[begin]; ++end) {
      panels += w.parts[end].panels;
      step = std::max(step, panel_step(w.parts[end]));
    }
    const Activations x = i.tiles ? tiles(i, w.columns, n) : pack(i, at(i.x), w.columns, w.kinds[begin], n);
    share(panels, step, n, [&](int first, int last) {
      for (size_t p = begin; p < end; ++p) {
        const Matrix& m = w.parts[p];
        const size_t column = static_cast<size_t>(w.first_column[p]);
        const Destination to{out + column, stride, bias ? bias + column : nullptr, residual ? residual + column : nullptr, stride, nullptr};
        const int low = std::clamp(first, 0, m.panels), high = std::clamp(last, 0, m.panels);
        if (low < high) r.table_.matmul(&m, &x, low, high, &to);
        first -= m.panels;
        last -= m.panels;
      }
    });
    r.pool_.barrier(end == w.parts.size() ? next_weights() : Ahead{});
  }
}

Ahead Executor::next_weights() const {
  constexpr int few_rows = 16, far = 2;
  constexpr size_t most_bytes = 64 << 10;
  if (rows > few_rows) return {};
  for (const Instruction* i = next; i < end && i < next + far; ++i) {
    if (i->weight == kNone) continue;
    const Weight& w = r.weights_[static_cast<size_t>(i->weight)];
    int panels = 0, step = 1;
    for (size_t p = 0; p < (w.pair ? 1 : w.parts.size()) && w.kinds[p] == w.kinds[0]; ++p) {
      panels += w.parts[p].panels;
      step = std::max(step, panel_step(w.parts[p]));
    }
    int first = r.pool_.share_begin(worker, panels, step);
    for (const Matrix& m : w.parts) {
      if (first < m.panels) return {m.data + static_cast<size_t>(first) * m.stride, std::min(most_bytes, static_cast<size_t>(m.panels - first) * m.stride)};
      first -= m.panels;
    }
  }
  return {};
}

void Executor::linear(const Instruction& i) {
  if (const int n = count(i); n > 0) stack(i, n, at(i.out), i.residual == kNone ? nullptr : at(i.residual));
}

void Executor::qkv(const Instruction& i) {
  if (rows == 0) return;
  const size_t stride = static_cast<size_t>(r.weights_[static_cast<size_t>(i.weight)].rows);
  stack(i, rows, r.qkv_, nullptr);
  turn_and_store(i, stride);
  r.pool_.barrier(next_weights());
}

// Heads of q, k and v: turned by rope, q into its place, k and v into theirs or into the pool.
void Executor::turn_and_store(const Instruction& i, size_t stride) {
  const size_t dim = static_cast<size_t>(i.head_dim);
  const int heads = static_cast<int>(i.heads), kv_heads = static_cast<int>(i.kv_heads), units = heads + kv_heads;
  const Rope how{nullptr, nullptr, static_cast<int>(i.dims), static_cast<int>(i.interleaved), 1, static_cast<int>(i.head_dim)};
  const int total = rows * units, k = workers();
  const int first = static_cast<int>(int64_t{total} * worker / k), last = static_cast<int>(int64_t{total} * (worker + 1) / k);
  KvLayer kv{};
  if (i.group != kNone) kv = r.pools_[static_cast<size_t>(i.group)]->layer(static_cast<int>(i.layer));
  for (int u = first; u < last; ++u) {
    const size_t t = static_cast<size_t>(u / units);
    const int h = u % units;
    float* part = r.qkv_ + t * stride + static_cast<size_t>(h) * dim;
    const size_t half = static_cast<size_t>(i.dims / 2);
    const auto turn = [&](float* out) {
      if (i.cos == kNone) std::memcpy(out, part, dim * 4);
      else r.table_.rope(part, out, at(i.cos) + t * half, at(i.sin) + t * half, &how);
    };
    if (h < heads) {
      turn(at(i.q) + (t * static_cast<size_t>(heads) + static_cast<size_t>(h)) * dim);
      continue;
    }
    const int head = h - heads;
    const float* v = part + static_cast<size_t>(kv_heads) * dim;
    float* k_out = r.scratch_[static_cast<size_t>(worker)];
    if (i.group == kNone) {
      const size_t to = (t * static_cast<size_t>(kv_heads) + static_cast<size_t>(head)) * dim;
      turn(at(i.k) + to);
      std::memcpy(at(i.v) + to, v, dim * 4);
      continue;
    }
    turn(k_out);
    KvLayer one = kv;
    one.data += static_cast<size_t>(head) * kv.head_stride;
    const AppendKv append{&one, k_out, v, 0, 1, r.step_.groups[static_cast<size_t>(i.group)].slots.data() + t, 0, 1};
    r.table_.append_kv(&append);
  }
}

void Executor::swiglu(const Instruction& i) {
  const Weight& w = r.weights_[static_cast<size_t>(i.weight)];
  const int n = count(i);
  if (n == 0) return;
  const Activations x = pack(i, at(i.x), w.columns, w.kinds[0], n);
  const float* bias = values(i.bias);
  const Destination to{at(i.out), static_cast<size_t>(w.rows), bias, nullptr, 0, i.tiles ? at(i.out) : nullptr};
  share(w.parts[0].panels, panel_step(w.parts[0]), n, [&](int first, int last) {
    r.table_.swiglu(&w.parts[0], &w.parts[1], &x, first, last, &to, bias ? bias + w.rows : nullptr);
  });
  r.pool_.barrier(next_weights());
}

void Executor::head_argmax(const Instruction& i) {
  const Weight& w = r.weights_[static_cast<size_t>(i.weight)];
  const int n = count(i);
  if (n == 0) return;
  const Best& best = r.best_[static_cast<size_t>(worker)];
  std::fill_n(best.value, n, -std::numeric_limits<float>::infinity());
  std::fill_n(best.index, n, 0);
  std::memset(best.bad, 0, static_cast<size_t>(n));
  const Matrix& m = w.parts[0];
  const Activations x = pack(i, at(i.x), w.columns, w.kinds[0], n);
  share(m.panels, panel_step(m), n, [&](int first, int last) { r.table_.argmax(&m, &x, first, last, values(i.bias), &best); });
  r.pool_.barrier();
  if (worker != 0) return;
  r.head_tokens_.resize(static_cast<size_t>(n));
  for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
    float value = -std::numeric_limits<float>::infinity();
    int32_t index = 0;
    bool bad = false;
    for (const Best& b : r.best_) {
      bad |= b.bad[row] != 0;
      if (b.value[row] > value || (b.value[row] == value && b.index[row] < index)) {
        value = b.value[row];
        index = b.index[row];
      }
    }
    r.head_tokens_[row] = bad || !std::isfinite(value) ? kNoToken : index;
  }
}

}  // namespace cacheir
