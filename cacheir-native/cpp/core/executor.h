// One worker's walk over a section's instructions; every worker makes the same walk and meets at barriers.
#pragma once
#include <algorithm>

#include "cacheir_native/runner.h"

namespace cacheir {

struct Executor {
  Runner& r;
  const int worker;
  const int rows;  // of the section: tokens of main, rows of a head
  const Instruction* next = nullptr;  // what follows, and where that ends
  const Instruction* end = nullptr;
  const Instruction* unturned = nullptr;  // the qkv whose heads the attention after it turns and stores

  void run(const Instruction& i);

 private:
  void embedding(const Instruction& i);
  void rope_table(const Instruction& i);
  void norm(const Instruction& i);
  void stack(const Instruction& i, int n, float* out, const float* residual);
  void linear(const Instruction& i);
  void qkv(const Instruction& i);
  void turn_and_store(const Instruction& i);
  void turn(const Instruction& i, size_t token, int head, float* out) const;
  void store(const Instruction& i, size_t token, int head) const;
  bool attention_turns(const Instruction& i) const;
  void ask_for_pages(const Instruction& attention) const;
  void rope(const Instruction& i);
  void kv_append(const Instruction& i);
  void attention(const Instruction& i);
  void swiglu(const Instruction& i);
  void elementwise(const Instruction& i);
  void gather_rows(const Instruction& i);
  void head_argmax(const Instruction& i);
  bool screened_argmax(const Instruction& i, const Activations& x);
  void clear_best(size_t rows) const;
  void sample(const Instruction& i);

  float* at(int64_t place) const { return reinterpret_cast<float*>(r.arena_.data() + place); }
  const float* values(int64_t handle) const { return handle == kNone ? nullptr : r.vectors_[static_cast<size_t>(handle)].first; }
  int count(const Instruction& i) const { return i.head_rows ? static_cast<int>(r.step_.head_rows.size()) : rows; }
  int workers() const { return r.pool_.threads(); }

  // x packed for products; a few rows by every worker for itself, more together and then a barrier.
  Activations pack(const Instruction& i, const float* x, int columns, Act kind, int n);

  Activations tiles(const Instruction& i, int columns, int n) const;

  // Calls f(first, last) for parts of [0, total) that are this worker's. `step` is what parts should be multiples of.
  template <class F> void share(int total, int step, int n, F f);
};

template <class F> void Executor::share(int total, int step, int n, F f) {
  if (workers() == 1 || total <= step) {
    if (worker == 0 && total > 0) f(0, total);
    return;
  }
  // Few rows go through many panels in no time; many rows stay with one for long.
  constexpr int few_rows = 16, most = 32;
  const int grain = n > few_rows ? step : std::max(step, most);
  r.pool_.begin_share(worker);
  while (true) {
    const auto [first, count] = r.pool_.next_of_share(worker, total, step, grain);
    if (count == 0) return;
    f(first, first + count);
  }
}

}  // namespace cacheir
