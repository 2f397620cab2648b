// Products of every format on every instruction set here: against float64, and bit-equal for any number of rows, fused ones too.
#include <algorithm>

#include "check.h"
#include "core/activation_buffer.h"
#include "core/dispatch.h"

using namespace cacheir;

namespace {

constexpr int kRowCounts[] = {1, 2, 7, 12, 13, 100, 512};

struct Products {
  std::vector<float> out;  // [rows][N]
};

// Rows packed for products, with their memory.
struct PackedRows {
  HugeArena arena;
  ActivationBuffer buffer;
  Activations rows;

  PackedRows(const KernelTable& table, Act kind, const float* x, int count, int columns) {
    buffer.reserve(arena, static_cast<size_t>(count), static_cast<size_t>(columns));
    rows = buffer.view(kind, count, columns);
    std::vector<float> scratch(static_cast<size_t>(columns) + 64);
    const PackRows pack{x, static_cast<size_t>(columns), nullptr, 0, scratch.data(), &rows, 0, count};
    table.pack_rows(&pack);
  }
};

std::vector<float> product(const KernelTable& table, const Matrix& w, Act kind, const float* x, int rows) {
  const PackedRows packed(table, kind, x, rows, w.columns);
  const Activations& a = packed.rows;
  std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(w.rows), -77.0f);
  const Destination to{out.data(), static_cast<size_t>(w.rows), nullptr, nullptr, 0, nullptr};
  const int middle = w.panels / 2;  // any split of the panels gives the same
  table.matmul(&w, &a, middle, w.panels, &to);
  table.matmul(&w, &a, 0, middle, &to);
  return out;
}

double magnitude(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(a[i]) * b[i]);
  return sum;
}

// What int8 activations make of a row: codes times scales.
std::vector<float> quantised(const float* x, int columns) {
  std::vector<float> out(static_cast<size_t>(columns));
  for (int b = 0; b < columns; b += 32) {
    float top = 0;
    for (int i = b; i < b + 32; ++i) top = std::max(top, std::fabs(x[i]));
    const float inverse = top > 0 ? 127.0f / top : 0;
    for (int i = b; i < b + 32; ++i) out[static_cast<size_t>(i)] = static_cast<float>(std::nearbyint(x[i] * inverse)) * (top / 127.0f);
  }
  return out;
}

void check_format(std::mt19937& random, const KernelTable& table, Stored format, bool precise, int rows_n, int columns) {
  const Panel panel = panel_of(format, precise, table.bf16_dot);
  const Act kind = activations_of(panel, precise, table.bf16_dot);
  const check::Packed p = check::pack(random, format, panel, rows_n, columns);
  const int most = 512;
  std::vector<float> x = check::normal(random, static_cast<size_t>(most * columns));
  const std::vector<float> all = product(table, p.matrix, kind, x.data(), most);
  std::vector<float> row(static_cast<size_t>(columns));
  for (int n = 0; n < rows_n; n += 5) {
    unpack_row(p.matrix, n, row.data());
    for (int m = 0; m < most; m += 9) {
      std::vector<float> xm(x.begin() + m * columns, x.begin() + (m + 1) * columns);
      if (kind == Act::int8) xm = quantised(xm.data(), columns);
      if (kind == Act::bf16) for (float& v : xm) v = from_bf16(to_bf16(v));
      double expected = 0;
      for (int k = 0; k < columns; ++k) expected += static_cast<double>(row[static_cast<size_t>(k)]) * xm[static_cast<size_t>(k)];
      const double got = all[static_cast<size_t>(m * rows_n + n)];
      const double bound = 4e-6 * magnitude(row.data(), xm.data(), columns) + 1e-5;
      CHECK(std::fabs(got - expected) <= bound, "%s %s %s n %d m %d: %g, not %g", table.name, stored_name(format), precise ? "precise" : "", n, m, got, expected);
    }
  }
  for (int rows : kRowCounts) {
    const int first = most - rows;  // another place in another tile
    const std::vector<float> some = product(table, p.matrix, kind, x.data() + first * columns, rows);
    CHECK(std::memcmp(some.data(), all.data() + static_cast<size_t>(first) * static_cast<size_t>(rows_n), some.size() * 4) == 0,
          "%s %s %s: %d rows differ from the same rows among %d", table.name, stored_name(format), precise ? "precise" : "", rows, most);
  }
}

// swiglu of a pair in one stream and the gate's argmax: the bits of a row are those that it has among many.
void check_fused_rows(std::mt19937& random, const KernelTable& table, Stored format, bool precise) {
  const int n = 75, columns = block_columns(format) == 256 ? 256 : 64, panels = (n + 15) / 16, most = 512;
  const Panel panel = panel_of(format, precise, table.bf16_dot);
  const Act kind = activations_of(panel, precise, table.bf16_dot);
  const size_t stride = panel_bytes(panel, columns), width = static_cast<size_t>(n);
  const HugeMemory memory(2 * stride * static_cast<size_t>(panels));
  const Matrix gate{panel, memory.data(), 2 * stride, n, columns, panels}, up{panel, memory.data() + stride, 2 * stride, n, columns, panels};
  for (const Matrix* to : {&gate, &up}) {
    const std::vector<uint8_t> source = check::stored(random, format, n, columns);
    pack_panels({format, source.data(), n, columns}, *to, 0, panels);
  }
  const std::vector<float> x = check::normal(random, static_cast<size_t>(most * columns));
  std::vector<float> all;
  const std::vector<float> logits = product(table, gate, kind, x.data(), most);
  for (int rows : {most, 1, 2, 7, 12, 13, 100}) {
    const int first = most - rows;
    const PackedRows packed(table, kind, x.data() + first * columns, rows, columns);
    std::vector<float> out(static_cast<size_t>(rows) * width, -77.0f), value(static_cast<size_t>(rows), -INFINITY);
    const Destination to{out.data(), width, nullptr, nullptr, 0, nullptr};
    table.swiglu(&gate, &up, &packed.rows, 2, panels, &to, nullptr);
    table.swiglu(&gate, &up, &packed.rows, 0, 2, &to, nullptr);
    if (all.empty()) all = out;
    CHECK(std::memcmp(out.data(), all.data() + static_cast<size_t>(first) * width, out.size() * 4) == 0, "%s %s%s: swiglu of %d rows differs", table.name,
          stored_name(format), precise ? " precise" : "", rows);
    std::vector<int32_t> index(static_cast<size_t>(rows), 0);
    std::vector<uint8_t> bad(static_cast<size_t>(rows), 0);
    const Best best{value.data(), index.data(), bad.data()};
    table.argmax(&gate, &packed.rows, 0, 3, nullptr, &best);
    table.argmax(&gate, &packed.rows, 3, panels, nullptr, &best);
    for (int m = 0; m < rows; ++m) {
      const float* row = logits.data() + static_cast<size_t>(first + m) * width;
      const float* largest = std::max_element(row, row + n);
      CHECK(value[static_cast<size_t>(m)] == *largest && index[static_cast<size_t>(m)] == largest - row, "%s %s%s: argmax of %d rows, row %d", table.name,
            stored_name(format), precise ? " precise" : "", rows, m);
    }
  }
}

void check_argmax_and_swiglu(std::mt19937& random, const KernelTable& table) {
  const int n = 133, columns = 64, rows = 13;
  const check::Packed gate = check::pack(random, Stored::q8_0, Panel::q8_0, n, columns), up = check::pack(random, Stored::q4_1, Panel::q4_1, n, columns);
  const std::vector<float> x = check::normal(random, rows * columns);
  const std::vector<float> g = product(table, gate.matrix, Act::int8, x.data(), rows), u = product(table, up.matrix, Act::int8, x.data(), rows);
  const PackedRows packed(table, Act::int8, x.data(), rows, columns);
  const Activations& a = packed.rows;
  std::vector<float> out(static_cast<size_t>(rows * n), -77.0f);
  const Destination to{out.data(), static_cast<size_t>(n), nullptr, nullptr, 0, nullptr};
  table.swiglu(&gate.matrix, &up.matrix, &a, 0, gate.matrix.panels, &to, nullptr);
  std::vector<float> value(rows, -INFINITY);
  std::vector<int32_t> index(rows, 0);
  std::vector<uint8_t> bad(rows, 0);
  const Best best{value.data(), index.data(), bad.data()};
  table.argmax(&gate.matrix, &a, 4, gate.matrix.panels, nullptr, &best);
  table.argmax(&gate.matrix, &a, 0, 4, nullptr, &best);
  for (int m = 0; m < rows; ++m) {
    for (int i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(m * n + i);
      const double expected = g[at] / (1 + std::exp(-static_cast<double>(g[at]))) * u[at];
      CHECK(std::fabs(out[at] - expected) <= 1e-5 + 1e-5 * std::fabs(expected), "%s swiglu %d %d: %g, not %g", table.name, m, i, out[at], expected);
    }
    const float* row = g.data() + m * n;
    CHECK(index[static_cast<size_t>(m)] == std::max_element(row, row + n) - row, "%s argmax of row %d", table.name, m);
  }
  // Two columns of one value, the later panels first, as a worker meets them that helps another from the back.
  std::vector<float> bias(n, 0.0f);
  bias[20] = bias[100] = 1e30f;
  std::fill(value.begin(), value.end(), -INFINITY);
  table.argmax(&gate.matrix, &a, 4, gate.matrix.panels, bias.data(), &best);
  table.argmax(&gate.matrix, &a, 0, 4, bias.data(), &best);
  for (int m = 0; m < rows; ++m) CHECK(index[static_cast<size_t>(m)] == 20, "%s argmax of equals, row %d", table.name, m);
}

// Rows of int8 with what is no number, infinite, or so small that its inverse is: the other rows keep their bits.
void check_odd_numbers(std::mt19937& random, const KernelTable& table) {
  const int n = 37, columns = 64, rows = 5;
  const check::Packed w = check::pack(random, Stored::q8_0, Panel::q8_0, n, columns);
  std::vector<float> x = check::normal(random, rows * columns);
  const std::vector<float> plain = product(table, w.matrix, Act::int8, x.data(), rows);
  x[1 * columns + 3] = NAN;
  x[2 * columns + 40] = INFINITY;
  for (int k = 0; k < columns; ++k) x[static_cast<size_t>(3 * columns + k)] = k % 3 ? 1e-38f : 0;
  const std::vector<float> odd = product(table, w.matrix, Act::int8, x.data(), rows);
  for (int i = 0; i < rows * n; ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool right = i / n == 3 ? std::fabs(odd[at]) < 1e-30f : i / n % 4 == 0 ? odd[at] == plain[at] : !std::isfinite(odd[at]);
    CHECK(right, "%s row %d of odd numbers: %g, of plain ones %g", table.name, i / n, odd[at], plain[at]);
  }
}

void check_halves() {
  for (int h = 0; h < 1 << 16; ++h) {
    const uint16_t half = static_cast<uint16_t>(h), got = half_to_bf16(half), expected = to_bf16(from_half(half));
    CHECK(got == expected, "f16 %x as bf16: %x, not %x", h, got, expected);
  }
}

// All numbers of 16 bits, in 16 rows: what the kernel makes of them is what the plain conversion makes.
void check_packed_halves(const KernelTable& table) {
  if (!table.pack_halves) return;
  constexpr size_t rows = kPanelRows, columns = (1 << 16) / rows;
  std::vector<uint16_t> given(rows * columns), panel(rows * columns);
  for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<uint16_t>(i);
  for (const bool is_f16 : {false, true}) {
    table.pack_halves(reinterpret_cast<const uint8_t*>(given.data()), columns * 2, is_f16, columns, reinterpret_cast<uint8_t*>(panel.data()));
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        const uint16_t value = given[r * columns + c], expected = is_f16 ? half_to_bf16(value) : value;
        const uint16_t got = panel[(c / 2 * rows + r) * 2 + c % 2];
        CHECK(got == expected, "%s packs %x (f16: %d) as %x, not %x", table.name, value, is_f16, got, expected);
      }
  }
}

}  // namespace

int main() {
  check_halves();
  std::mt19937 random(std::random_device{}());
  for (const KernelTable* table : supported_tables()) {
    check_packed_halves(*table);
    for (int f = 0; f < static_cast<int>(Stored::count); ++f) {
      const Stored format = static_cast<Stored>(f);
      const bool super = block_columns(format) == 256;
      check_format(random, *table, format, false, 75, super ? 512 : 576);
      check_format(random, *table, format, true, 50, super ? 256 : 96);
      if (block_columns(format) == 1) check_format(random, *table, format, false, 21, 67);
      // More blocks than are unpacked at once.
      if (has_half_blocks(static_cast<Panel>(f))) check_format(random, *table, format, false, 19, 2304);
      for (bool precise : {false, true}) check_fused_rows(random, *table, format, precise);
    }
    check_argmax_and_swiglu(random, *table);
    check_odd_numbers(random, *table);
  }
  return check::result("matmul");
}
