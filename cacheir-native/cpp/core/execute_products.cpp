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
    r.pool_.barrier();
  }
}

void Executor::linear(const Instruction& i) {
  if (const int n = count(i); n > 0) stack(i, n, at(i.out), i.residual == kNone ? nullptr : at(i.residual));
}

void Executor::qkv(const Instruction& i) {
  if (rows == 0) return;
  const bool later = attention_turns(i);
  if (later) ask_for_pages(*next);
  stack(i, rows, r.qkv_, nullptr);
  unturned = later ? &i : nullptr;
  if (later) return;
  turn_and_store(i);
  r.pool_.barrier();
}

// Heads of q, k and v: turned by rope, q into its place, k and v into theirs or into the pool.
void Executor::turn_and_store(const Instruction& i) {
  const size_t dim = static_cast<size_t>(i.head_dim), heads = static_cast<size_t>(i.heads);
  const int kv_heads = static_cast<int>(i.kv_heads), units = static_cast<int>(i.heads) + kv_heads;
  const int total = rows * units, k = workers();
  const int first = static_cast<int>(int64_t{total} * worker / k), last = static_cast<int>(int64_t{total} * (worker + 1) / k);
  for (int u = first; u < last; ++u) {
    const size_t t = static_cast<size_t>(u / units);
    const int h = u % units;
    if (h < static_cast<int>(heads)) turn(i, t, h, at(i.q) + (t * heads + static_cast<size_t>(h)) * dim);
    else store(i, t, h - static_cast<int>(heads));
  }
}

// Head `head` of a token's q, then of its k: turned by rope where there is one.
void Executor::turn(const Instruction& i, size_t token, int head, float* out) const {
  const size_t dim = static_cast<size_t>(i.head_dim), half = static_cast<size_t>(i.dims / 2);
  const float* part = r.qkv_ + token * static_cast<size_t>(r.weights_[static_cast<size_t>(i.weight)].rows) + static_cast<size_t>(head) * dim;
  const Rope how{nullptr, nullptr, static_cast<int>(i.dims), static_cast<int>(i.interleaved), 1, static_cast<int>(i.head_dim)};
  if (i.cos == kNone) std::memcpy(out, part, dim * 4);
  else r.table_.rope(part, out, at(i.cos) + token * half, at(i.sin) + token * half, &how);
}

// A KV head of a token, turned, into the pool or into the places of k and v.
void Executor::store(const Instruction& i, size_t token, int head) const {
  const size_t dim = static_cast<size_t>(i.head_dim), kv_heads = static_cast<size_t>(i.kv_heads), h = static_cast<size_t>(head);
  const int k_head = static_cast<int>(i.heads) + head;
  const float* v = r.qkv_ + token * static_cast<size_t>(r.weights_[static_cast<size_t>(i.weight)].rows) + (static_cast<size_t>(k_head) + kv_heads) * dim;
  if (i.group == kNone) {
    const size_t to = (token * kv_heads + h) * dim;
    turn(i, token, k_head, at(i.k) + to);
    std::memcpy(at(i.v) + to, v, dim * 4);
    return;
  }
  float* k = r.scratch_[static_cast<size_t>(worker)];
  turn(i, token, k_head, k);
  KvLayer kv = r.pools_[static_cast<size_t>(i.group)]->layer(static_cast<int>(i.layer));
  kv.data += h * kv.head_stride;
  const AppendKv append{&kv, k, v, 0, 1, r.step_.groups[static_cast<size_t>(i.group)].slots.data() + token, 0, 1};
  r.table_.append_kv(&append);
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
  r.pool_.barrier();
}

void Executor::clear_best(size_t rows) const {
  const Best& best = r.best_[static_cast<size_t>(worker)];
  std::fill_n(best.value, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(best.index, rows, 0);
  std::memset(best.bad, 0, rows);
}

void Executor::head_argmax(const Instruction& i) {
  const Weight& w = r.weights_[static_cast<size_t>(i.weight)];
  const int n = count(i);
  if (n == 0) return;
  const Matrix& m = w.parts[0];
  const Activations x = pack(i, at(i.x), w.columns, w.kinds[0], n);
  clear_best(static_cast<size_t>(n));
  if (!screened_argmax(i, x)) {
    clear_best(static_cast<size_t>(n));
    const Best& best = r.best_[static_cast<size_t>(worker)];
    share(m.panels, panel_step(m), n, [&](int first, int last) { r.table_.argmax(&m, &x, first, last, values(i.bias), &best); });
    r.pool_.barrier();
  }
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
