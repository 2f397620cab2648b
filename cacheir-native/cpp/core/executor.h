// One worker's walk over a section's instructions; every worker makes the same walk and meets at barriers.
#pragma once
#include <algorithm>

#include "cacheir_native/runner.h"

namespace cacheir {

struct Executor {
  Runner& r;
  const int worker;
  const int rows;  // of the section: tokens of main, rows of a head

  void run(const Instruction& i);

 private:
  void embedding(const Instruction& i);
  void rope_table(const Instruction& i);
  void norm(const Instruction& i);
  void stack(const Instruction& i, int n, float* out, const float* residual);
  void linear(const Instruction& i);
  void qkv(const Instruction& i);
  void turn_and_store(const Instruction& i, size_t stride);
  void rope(const Instruction& i);
  void kv_append(const Instruction& i);
  void attention(const Instruction& i);
  void swiglu(const Instruction& i);
  void elementwise(const Instruction& i);
  void gather_rows(const Instruction& i);
  void head_argmax(const Instruction& i);
  void sample(const Instruction& i);

  float* at(int64_t place) const { return reinterpret_cast<float*>(r.arena_.data() + place); }
  const float* values(int64_t handle) const { return handle == kNone ? nullptr : r.vectors_[static_cast<size_t>(handle)].first; }
  int count(const Instruction& i) const { return i.head_rows ? static_cast<int>(r.step_.head_rows.size()) : rows; }
  int workers() const { return r.pool_.threads(); }

  // x packed for products; a few rows by every worker for itself, more together and then a barrier.
  Activations pack(const Instruction& i, const float* x, int columns, Act kind, int n);

  // Calls f(first, last) for parts of [0, total): three quarters in fixed shares, the rest to who comes first, so that a
  // worker whose CPU is taken away holds the others up less. `step` is what parts should be multiples of.
  template <class F> void share(int total, int step, F f);
};

template <class F> void Executor::share(int total, int step, F f) {
  const int n = workers();
  if (n == 1 || total <= step) {
    if (worker == 0 && total > 0) f(0, total);
    return;
  }
  const int fixed = total * 3 / 4 / (n * step) * (n * step);
  const int mine = fixed / n;
  if (mine > 0) f(worker * mine, (worker + 1) * mine);
  const int tail = total - fixed, grain = std::max(1, tail / (4 * n) / step) * step;
  while (true) {
    const auto [first, part] = r.pool_.next_piece(tail, grain);
    if (part == 0) return;
    f(fixed + first, fixed + first + part);
  }
}

}  // namespace cacheir
