// The token of a screened head: docs/native.md and core/screened_head.h say why it is that of the whole one.
#include <algorithm>
#include <limits>

#include "core/executor.h"

namespace cacheir {

// False, on all workers, where the whole head has to run; what stands in best_ is then of no use.
bool Executor::screened_argmax(const Instruction& i, const Activations& x) {
  ScreenedHead* head = r.screening_;
  if (!head || head->weight() != i.weight || i.bias != kNone || i.norm != kNone || x.rows > kMostScreenedRows) return false;
  ScreenedHead::Worker& mine = head->worker(worker);
  const Matrix &exact = r.weights_[static_cast<size_t>(i.weight)].parts[0], &screen = head->screen();
  const Best& best = r.best_[static_cast<size_t>(worker)];
  const int n = x.rows;
  if (!head->measure(r.table_, x, mine)) return false;
  for (int j = 0; j < n; ++j) mine.top[j] = {-std::numeric_limits<float>::infinity(), 0, 0};
  const Destination to{head->logits(0), head->stride(), nullptr, nullptr, 0, nullptr};
  share(screen.panels, 1, n, [&](int first, int last) {
    r.table_.matmul(&screen, &mine.x, first, last, &to);
    const int row = first * kPanelRows, count = std::min(last * kPanelRows, screen.rows) - row;
    for (int j = 0; j < n; ++j) {
      const float value = r.table_.largest(head->logits(j) + row, static_cast<size_t>(count));
      if (!(value <= mine.top[j].value)) mine.top[j] = {value, row, count};
    }
  });
  r.pool_.barrier();
  // Every worker multiplies the panels of the best screened rows for itself: cheaper than to wait for one.
  for (int j = 0; j < n; ++j) {
    ScreenedHead::Top top = mine.top[j];
    for (const ScreenedHead::Worker& w : head->workers())
      if (!(w.top[j].value <= top.value)) top = w.top[j];
    const float* logits = head->logits(j) + top.first;
    const int panel = (top.first + static_cast<int>(std::max_element(logits, logits + top.count) - logits)) / kPanelRows;
    r.table_.argmax(&exact, &x, panel, panel + 1, nullptr, &best);
  }
  for (int j = 0; j < n; ++j) head->set_floor(mine.rows[j], best.value[j]);
  // Tokens of low numbers are the common ones, so neighbouring panels go to different workers.
  int left = 0;
  for (int p = worker; p < screen.panels && left <= head->most_panels(); p += workers()) {
    bool passes = false;
    for (int j = 0; j < n && !passes; ++j) {
      const size_t at = static_cast<size_t>(p) * kPanelRows;
      const float* rest = mine.x.rows > n ? head->logits(n + j) + at : nullptr;
      passes = r.table_.screen_passes(head->logits(j) + at, rest, head->errors() + at, mine.rows[j].error_factor, mine.rows[j].floor) != 0;
    }
    if (passes) mine.panels[left++] = p;
  }
  const bool too_many = left > head->most_panels();
  for (int c = 0; c < left && !too_many; ++c) {
    if (c + 1 < left) {
      const uint8_t* next = exact.data + static_cast<size_t>(mine.panels[c + 1]) * exact.stride;
      for (size_t line = 0; line < 1024; line += 64) __builtin_prefetch(next + line);
    }
    r.table_.argmax(&exact, &x, mine.panels[c], mine.panels[c] + 1, nullptr, &best);
  }
  mine.left = too_many ? -1 : left;
  mine.took_part = true;
  r.pool_.barrier();
  return std::none_of(head->workers().begin(), head->workers().end(), [](const ScreenedHead::Worker& w) { return w.left < 0; });
}

}  // namespace cacheir
