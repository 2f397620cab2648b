// Making a screen, the bounds of a step, and giving up.
#include "core/screened_head.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.h"

namespace cacheir {
namespace {

constexpr int kWait = 64;                      // greedy steps before a screen is made: short runs do without
constexpr size_t kLeastSaved = size_t{1} << 20;  // bytes a step, below which a screen is not worth another barrier
constexpr double kMostLost = 8, kMostKept = 16;  // in reads of the whole head

constexpr double kUnit = 0x1p-24;  // a rounding of f32, relative

size_t panel_count(int rows) { return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows); }
size_t head_bytes(const Matrix& m) { return m.stride * static_cast<size_t>(m.panels); }

// Codes of screened rows: as the head has them, or two int8 rows for each (x, and what x is off by).
int screen_rows(Act kind, int rows) { return kind == Act::int8 ? rows : 2 * rows; }

// Row q of packed activations: the first row of its tile, the tile's rows and its place there.
struct InTile {
  size_t first, rows, place;
};
InTile in_tile(const KernelTable& table, const Activations& x, int q) {
  for (int r = 0, m;; r += m) {
    m = table.tile_rows(x.kind, x.rows - r);
    if (q < r + m) return {static_cast<size_t>(r), static_cast<size_t>(m), static_cast<size_t>(q - r)};
  }
}

// Column k of a packed row.
double value_at(const Activations& x, const InTile& t, size_t k) {
  const size_t columns = static_cast<size_t>(x.columns);
  if (x.kind == Act::f32) return static_cast<const float*>(x.codes)[t.first * columns + k * t.rows + t.place];
  if (x.kind == Act::bf16)
    return from_bf16(static_cast<const uint16_t*>(x.codes)[t.first * round_up(columns, 2) + (k / 2 * t.rows + t.place) * 2 + k % 2]);
  const size_t at = k / kBlock * t.rows + t.place;
  const int code = static_cast<const int8_t*>(x.codes)[t.first * columns + at * kBlock + k % kBlock];
  return static_cast<double>(x.scale[t.first * (columns / kBlock) + at]) * code;
}

// Of the screen itself and the norms beside it.
size_t screen_bytes(const Matrix& head) {
  return (panel_bytes(Panel::q5_0, head.columns) + kPanelRows * sizeof(float)) * panel_count(head.rows);
}

float rounded_up(double value) { return static_cast<float>(value * (1 + 0x1p-20)); }

}  // namespace

bool can_be_screened(const Matrix& head) {
  const bool wider = head.format == Panel::f32 || head.format == Panel::f16 || head.format == Panel::bf16 || head.format == Panel::q8_0;
  return wider && head.columns % kBlock == 0 && head.columns > 0 && head.rows > 0;
}

bool is_worth_screening(const Matrix& head) { return head_bytes(head) >= screen_bytes(head) + kLeastSaved; }

ScreenedHead::ScreenedHead(int64_t weight, const Matrix& head, Act kind, bool always, int workers, HugeArena& workspace)
    : weight_(weight), head_(head), kind_(kind), always_(always), memory_(screen_bytes(head)), workers_(static_cast<size_t>(workers)) {
  const size_t stride = panel_bytes(Panel::q5_0, head.columns), columns = static_cast<size_t>(head.columns), panels = panel_count(head.rows);
  screen_ = {Panel::q5_0, memory_.data(), stride, head.rows, head.columns, head.panels};
  errors_ = reinterpret_cast<float*>(memory_.data() + stride * panels);
  norms_ = reinterpret_cast<float*>(workspace.allocate(static_cast<size_t>(workers) * sizeof(float)));
  const int rows = screen_rows(kind, kMostScreenedRows);
  logits_ = reinterpret_cast<float*>(workspace.allocate(static_cast<size_t>(rows) * panels * kPanelRows * sizeof(float)));
  for (Worker& w : workers_) {
    w.buffer.reserve(workspace, static_cast<size_t>(rows), columns);
    w.values = reinterpret_cast<float*>(workspace.allocate(static_cast<size_t>(rows) * columns * sizeof(float)));
    w.scratch = reinterpret_cast<float*>(workspace.allocate(round_up(columns, 64) * sizeof(float)));
    w.panels = reinterpret_cast<int32_t*>(workspace.allocate(panels * sizeof(int32_t)));
  }
  // Rows that are left cost what they are read; beyond half of what the screen saves it is not worth them.
  const double worth = static_cast<double>(head_bytes(head) - std::min(head_bytes(head), screen_bytes(head))) / 2 / static_cast<double>(head.stride);
  most_panels_ = always ? head.panels : static_cast<int>(worth / workers) + 1;
}

struct Make {
  ThreadPool* pool;
  const KernelTable* table;
  ScreenedHead* head;
};

void make_part(void* context, int worker) {
  const Make& job = *static_cast<Make*>(context);
  ScreenedHead& h = *job.head;
  const double columns = h.head_.columns;
  float errors[kPanelRows], norms[kPanelRows];
  double largest = 0;
  while (true) {
    const auto [first, count] = job.pool->next_piece(h.head_.panels, 8);
    if (count == 0) break;
    for (int p = first; p < first + count; ++p) {
      uint8_t* out = const_cast<uint8_t*>(h.screen_.data) + static_cast<size_t>(p) * h.screen_.stride;
      job.table->screen_panel(&h.head_, p, out, errors, norms);
      for (int r = 0; r < kPanelRows; ++r) {
        // Sums of squares in f32: what rounding and numbers too small to be squared can have taken is put back.
        const auto bound = [&](float sum) { return std::sqrt(sum * (1 + (columns + 8) * 2 * kUnit) + columns * 0x1p-120); };
        const double error = bound(errors[r]);
        largest = std::max(largest, bound(norms[r]) + error);
        if (!std::isfinite(error) || !std::isfinite(norms[r])) largest = std::numeric_limits<double>::infinity();
        h.errors_[static_cast<size_t>(p) * kPanelRows + static_cast<size_t>(r)] = rounded_up(error);
      }
    }
  }
  h.norms_[worker] = rounded_up(largest);
}

void ScreenedHead::make(ThreadPool& pool, const KernelTable& table) {
  Make job{&pool, &table, this};
  pool.run(make_part, &job);
  largest_norm_ = 0;
  for (size_t w = 0; w < workers_.size(); ++w) largest_norm_ = std::max(largest_norm_, static_cast<double>(norms_[w]));
  // Rows beyond the matrix never pass.
  for (int row = 0; row < screen_rows(kind_, kMostScreenedRows); ++row)
    for (size_t n = static_cast<size_t>(head_.rows); n < stride(); ++n) logits(row)[n] = -std::numeric_limits<float>::infinity();
  counts_.ready = true;
  if (!(largest_norm_ < 1e30)) give_up();
}

void ScreenedHead::give_up() {
  counts_.given_up = true;
  memory_ = HugeMemory();
}

bool ScreenedHead::begin(ThreadPool& pool, const KernelTable& table, int rows) {
  // More rows were measured to gain nothing: a screen of int8 reads two thirds of its head, and computes more.
  const int most = always_ ? kMostScreenedRows : kind_ == Act::int8 ? 1 : 2;
  if (counts_.given_up || rows > most) return false;
  if (!counts_.ready) {
    if (!always_ && ++waited_ <= kWait) return false;
    make(pool, table);
    if (counts_.given_up) return false;
  }
  for (Worker& w : workers_) w.took_part = false;
  return true;
}

void ScreenedHead::end() {
  if (!workers_.front().took_part) return;
  const bool too_many = std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.left < 0; });
  int64_t panels = 0;
  for (const Worker& w : workers_) panels += std::max(w.left, 0);
  counts_.panels += panels;
  ++(too_many ? counts_.too_many : counts_.steps);
  const double whole = static_cast<double>(head_bytes(head_));
  const double read = static_cast<double>(screen_bytes(head_)) + static_cast<double>(panels) * static_cast<double>(head_.stride) + (too_many ? whole : 0);
  counts_.saved_bytes += static_cast<int64_t>(whole - read);
  saved_ = std::min(saved_ + whole - read, kMostKept * whole);
  if (!always_ && saved_ < -kMostLost * whole) give_up();
}

bool ScreenedHead::measure(const KernelTable& table, const Activations& x, Worker& mine) const {
  const int n = x.rows, both = screen_rows(kind_, n);
  const size_t columns = static_cast<size_t>(x.columns);
  mine.x = x;
  if (kind_ != Act::int8) {
    // x as int8, and what that leaves of it as int8 again: together they have 16 bits.
    for (int q = 0; q < n; ++q) {
      const InTile t = in_tile(table, x, q);
      for (size_t k = 0; k < columns; ++k) mine.values[static_cast<size_t>(q) * columns + k] = static_cast<float>(value_at(x, t, k));
    }
    mine.x = mine.buffer.view(Act::int8, n, x.columns);
    const PackRows first{mine.values, columns, nullptr, 0, mine.scratch, &mine.x, 0, n};
    table.pack_rows(&first);
    for (int q = 0; q < n; ++q) {
      const InTile t = in_tile(table, mine.x, q);
      const float* value = mine.values + static_cast<size_t>(q) * columns;
      for (size_t k = 0; k < columns; ++k) mine.values[static_cast<size_t>(n + q) * columns + k] = static_cast<float>(value[k] - value_at(mine.x, t, k));
    }
    mine.x = mine.buffer.view(Act::int8, both, x.columns);
    const PackRows all{mine.values, columns, nullptr, 0, mine.scratch, &mine.x, 0, both};
    table.pack_rows(&all);
  }
  bool good = true;
  for (int q = 0; q < n; ++q) {
    const InTile exact = in_tile(table, x, q), one = in_tile(table, mine.x, q);
    double norm = 0, first = 0, second = 0, off = 0;
    for (size_t k = 0; k < columns; ++k) {
      const double value = value_at(x, exact, k);
      norm += value * value;
      if (kind_ == Act::int8) continue;
      const double a = value_at(mine.x, one, k);
      first += a * a;
    }
    if (kind_ != Act::int8) {
      const InTile two = in_tile(table, mine.x, n + q);
      for (size_t k = 0; k < columns; ++k) {
        const double b = value_at(mine.x, two, k), rest = value_at(x, exact, k) - value_at(mine.x, one, k) - b;
        second += b * b;
        off += rest * rest;
      }
    }
    constexpr double more = 1 + 1e-9;  // these sums are of doubles
    Row& row = mine.rows[q];
    row.norm = std::sqrt(norm) * more;
    row.reach = row.norm + (std::sqrt(first) + std::sqrt(second)) * more;
    row.off = std::sqrt(off) * more;
    row.error_factor = rounded_up(row.norm);
    // So no product of any two numbers, and no sum of them, is past what f32 holds.
    good &= row.reach < 1e30 && row.off < 1e30 && row.reach * largest_norm_ < 1e36;
  }
  return good;
}

void ScreenedHead::set_floor(Row& row, float logit) const {
  // Each accumulator adds one number for a block or for a column, with two roundings at most; twice that for two of them,
  // and the sums that are compared. What is too small for f32, or is taken for 0, is 2^-100 of a number at most.
  const double terms = kind_ == Act::int8 ? head_.columns / kBlock : head_.columns;
  const double rounding = (4 * terms + 64) * kUnit * largest_norm_ * row.reach;
  const double small = head_.columns * 0x1p-100 * (1 + row.reach) * (1 + largest_norm_);
  const double floor = logit - rounding - small - largest_norm_ * row.off;
  row.floor = static_cast<float>(floor - std::abs(floor) * 0x1p-20);
}

}  // namespace cacheir
