// Screened heads against whole ones: the same token for any weights and any rows, and giving up where it does not pay.
#include <algorithm>
#include <bit>
#include <limits>

#include "cacheir_native/runner.h"
#include "check.h"
#include "core/dispatch.h"

using namespace cacheir;

namespace {

constexpr int kColumns = 96, kRows = 1000, kInputs = 64, kVocabulary = 8000;

// Main looks a token up in a table of inputs, and the head is greedy: a step's tokens are the inputs that are tried.
struct Model {
  std::vector<uint8_t> head;
  std::unique_ptr<Runner> runner;
};

Model build(Stored format, std::vector<uint8_t> head, int rows, const std::vector<float>& inputs, int threads, bool precise, Screening screening) {
  RunnerOptions options{8, 64, 512, kVocabulary, threads, false, precise};
  options.screening = screening;
  Model model{std::move(head), std::make_unique<Runner>(options)};
  Runner& r = *model.runner;
  const int64_t table = r.add_weight({{Stored::f32, reinterpret_cast<const uint8_t*>(inputs.data()), static_cast<int>(inputs.size()) / kColumns, kColumns}}, false);
  const int64_t weight = r.add_weight({{format, model.head.data(), rows, kColumns}}, false);
  const int64_t h = r.reserve(64 * kColumns * 4), gathered = r.reserve(64 * kColumns * 4), input = r.reserve(64 * kColumns * 4);
  Instruction i;
  i.opcode = Opcode::embedding;
  i.table = table;
  i.out = h;
  r.emit("decode", i);
  i = Instruction{};
  i.opcode = Opcode::gather_rows;
  i.x = h;
  i.width = kColumns;
  i.out = gathered;
  r.emit("decode", i);
  r.set_output("decode", {gathered, kColumns, 0});
  r.set_input("decode/head.greedy", {input, kColumns, 8});
  i = Instruction{};
  i.opcode = Opcode::head_argmax;
  i.x = input;
  i.weight = weight;
  r.emit("decode/head.greedy", i);
  r.finish();
  return model;
}

std::vector<int32_t> tokens_of(Runner& r, const std::vector<int32_t>& inputs) {
  r.clear_step();
  Step& s = r.step();
  for (int32_t input : inputs) {
    StepRow row;
    row.slot = static_cast<int32_t>(s.rows.size());
    row.tokens = row.head_rows = 1;
    s.head_rows.push_back(row.slot);
    s.owners.push_back(row.slot);
    s.tokens.push_back(input);
    s.masks.insert(s.masks.end(), (kVocabulary + 31) / 32, 0xffffffffu);
    s.rows.push_back(row);
  }
  r.begin("decode");
  StepResult result;
  r.run_main();
  r.run_heads(result);
  for (size_t b = 0; b < inputs.size(); ++b) CHECK((result.tokens[b] < 0) == (result.failed[b] != 0), "a failed row has a token");
  return result.tokens;
}

float power(std::mt19937& random, int least, int most) {
  return std::ldexp(1.0f, least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1)));
}

// A head as its file has it. `kind` 1 has rows that are alike or nearly so, 2 rows of all sizes and of zeros.
std::vector<uint8_t> head_of(std::mt19937& random, Stored format, int rows, int kind) {
  if (format == Stored::q8_0) {
    std::vector<uint8_t> data = check::stored(random, format, rows, kColumns);
    const size_t bytes = data.size() / static_cast<size_t>(rows);
    for (int row = 1; row < rows && kind; ++row) {
      uint8_t* at = data.data() + static_cast<size_t>(row) * bytes;
      if (kind == 2 && random() % 4 == 0) std::memset(at, 0, bytes);
      if (kind == 1 && random() % 2) {
        std::memcpy(at, data.data() + random() % static_cast<unsigned>(row) * bytes, bytes);
        if (random() % 2) at[2 + random() % 32] ^= 1;
      }
    }
    return data;
  }
  std::vector<float> values = check::normal(random, static_cast<size_t>(rows * kColumns), 0.1f);
  for (int row = 1; row < rows && kind; ++row) {
    float* at = values.data() + row * kColumns;
    if (kind == 2) {
      const bool f32 = format != Stored::f16;
      const float scale = random() % 4 == 0 ? 0.0f : power(random, f32 ? -60 : -14, f32 ? 40 : 10);
      for (int k = 0; k < kColumns; ++k) at[k] *= scale;
    } else if (random() % 2) {
      std::memcpy(at, values.data() + random() % static_cast<unsigned>(row) * kColumns, kColumns * 4);
      if (random() % 2) at[random() % kColumns] *= 1.0f + std::ldexp(1.0f, -6 - static_cast<int>(random() % 18));
    }
  }
  std::vector<uint8_t> data(values.size() * (format == Stored::f32 ? 4 : 2));
  for (size_t n = 0; n < values.size(); ++n) {
    uint16_t half = to_bf16(values[n]);
    if (format == Stored::f16) {  // cut off, which is as good as any value here
      const uint32_t u = std::bit_cast<uint32_t>(values[n] * 0x1p-112f);
      half = static_cast<uint16_t>((u >> 16 & 0x8000u) | std::min((u & 0x7fffffffu) >> 13, 0x7bffu));
    }
    if (format == Stored::f32) std::memcpy(data.data() + 4 * n, &values[n], 4);
    else std::memcpy(data.data() + 2 * n, &half, 2);
  }
  return data;
}

std::vector<float> inputs_of(std::mt19937& random) {
  std::vector<float> values = check::normal(random, kInputs * kColumns);
  for (int n = 0; n < kInputs; ++n) {
    float* x = values.data() + n * kColumns;
    const auto scale = [&](float by) { for (int k = 0; k < kColumns; ++k) x[k] *= by; };
    switch (n) {
      case 0: scale(0); break;
      case 1: x[random() % kColumns] = std::numeric_limits<float>::quiet_NaN(); break;
      case 2: x[random() % kColumns] = std::numeric_limits<float>::infinity(); break;
      case 3: x[random() % kColumns] = -std::numeric_limits<float>::infinity(); break;
      case 4: scale(1e37f); break;
      case 5: scale(1e30f); break;
      case 6: scale(1e-30f); break;
      case 7: scale(1e-43f); break;
      case 8: for (int k = 1; k < kColumns; ++k) x[k] = 0; break;
      case 9: for (int k = 0; k < kColumns; ++k) x[k] = 1; break;
      case 10: for (int k = 0; k < kColumns; ++k) x[k] *= power(random, -20, 20); break;
      default: if (n % 2) scale(power(random, -30, 30));
    }
  }
  return values;
}

void check_equal_tokens(std::mt19937& random, Stored format, int kind, bool precise, int threads) {
  const int rows = random() % 2 ? kRows : 1 + static_cast<int>(random() % kRows);
  const std::vector<uint8_t> head = head_of(random, format, rows, kind);
  const std::vector<float> inputs = inputs_of(random);
  Model whole = build(format, head, rows, inputs, threads, precise, Screening::off);
  Model screened = build(format, head, rows, inputs, threads, precise, Screening::always);
  CHECK(whole.runner->screened_heads().empty() && screened.runner->screened_heads().size() == 1, "screens are not those asked for");
  for (int32_t first = 0; first < kInputs;) {
    std::vector<int32_t> tried;
    for (unsigned n = 1 + random() % 5; n > 0 && first < kInputs; --n) tried.push_back(first++);
    const std::vector<int32_t> expected = tokens_of(*whole.runner, tried), got = tokens_of(*screened.runner, tried);
    CHECK(expected == got, "format %d, kind %d, precise %d, %d threads, input %d of %zu: other tokens", static_cast<int>(format), kind, precise, threads, tried[0], tried.size());
  }
  const ScreenCounts& counts = screened.runner->screened_heads()[0]->counts();
  CHECK(counts.ready && !counts.given_up && counts.steps > 0 && counts.too_many == 0, "the screen took no part");
}

// The bound itself, against logits in double: no row is above what its screen allows.
void check_bounds(std::mt19937& random, Stored format, int kind) {
  const Panel panel = panel_of(format, true, false);
  const std::vector<uint8_t> head = head_of(random, format, kRows, kind);
  const int panels = (kRows + kPanelRows - 1) / kPanelRows;
  HugeMemory exact_memory(panel_bytes(panel, kColumns) * static_cast<size_t>(panels)), screen_memory(panel_bytes(Panel::q5_0, kColumns) * static_cast<size_t>(panels));
  const Matrix exact{panel, exact_memory.data(), panel_bytes(panel, kColumns), kRows, kColumns, panels};
  const Matrix screen{Panel::q5_0, screen_memory.data(), panel_bytes(Panel::q5_0, kColumns), kRows, kColumns, panels};
  pack_panels({format, head.data(), kRows, kColumns}, exact, 0, panels);
  for (const KernelTable* table : supported_tables()) {
    std::vector<float> error(static_cast<size_t>(panels) * 16), norm(error.size());
    for (int p = 0; p < panels; ++p)
      table->screen_panel(&exact, p, const_cast<uint8_t*>(screen.data) + static_cast<size_t>(p) * screen.stride, error.data() + p * 16, norm.data() + p * 16);
    for (int row = 0; row < kRows; ++row) {
      float a[kColumns], b[kColumns];
      unpack_row(exact, row, a);
      unpack_row(screen, row, b);
      double off = 0, held = 0, largest = 0, most = 0;
      for (int k = 0; k < kColumns; ++k) {
        const double d = static_cast<double>(a[k]) - static_cast<double>(b[k]);
        off += d * d;
        held += static_cast<double>(b[k]) * static_cast<double>(b[k]);
        largest = std::max(largest, std::abs(static_cast<double>(a[k])));
        most = std::max(most, std::abs(d));
      }
      const size_t at = static_cast<size_t>(row);
      CHECK(std::abs(static_cast<double>(error[at]) - off) <= 1e-4 * off + 1e-35, "%s, row %d: off by %g, said %g", table->name, row, off, static_cast<double>(error[at]));
      CHECK(std::abs(static_cast<double>(norm[at]) - held) <= 1e-4 * held + 1e-35, "%s, row %d: holds %g, said %g", table->name, row, held, static_cast<double>(norm[at]));
      // Half a step of 15.5, and what rounding the scale to f16 adds; below that, scales are subnormal.
      if (largest > 0.01 && largest < 1e5) CHECK(most <= largest / 15.5 * 0.52, "%s, row %d: a weight is off by %g of %g", table->name, row, most, largest);
    }
  }
}

size_t screen_bytes_of(int rows) { return (panel_bytes(Panel::q5_0, kColumns) + 64) * static_cast<size_t>(rows / kPanelRows); }

// A head that is large enough to be screened by itself, of rows that are all alike: it waits, leaves too many rows and is given up.
void check_giving_up(std::mt19937& random, bool alike) {
  const int rows = 8000;
  const std::vector<float> row = check::normal(random, kColumns), inputs = check::normal(random, kInputs * kColumns);
  std::vector<float> values = check::normal(random, static_cast<size_t>(rows) * kColumns);
  for (size_t n = 0; n < values.size() && alike; ++n) values[n] = row[n % kColumns] + 1e-4f * values[n];
  std::vector<uint8_t> head(values.size() * 4);
  std::memcpy(head.data(), values.data(), head.size());
  Model whole = build(Stored::f32, head, rows, inputs, 2, false, Screening::off);
  Model model = build(Stored::f32, head, rows, inputs, 2, false, Screening::automatic);
  Runner& r = *model.runner;
  CHECK(r.screened_heads().size() == 1, "the head is not screened");
  const ScreenedHead& screened = *r.screened_heads()[0];
  const size_t bytes = r.weight_bytes();
  for (int32_t n = 0; n < 150; ++n) {
    const std::vector<int32_t> input{n % kInputs};
    CHECK(tokens_of(r, input) == tokens_of(*whole.runner, input), "step %d: another token", n);
    CHECK(n >= 64 || !screened.counts().ready, "step %d: the screen is made early", n);
  }
  const ScreenCounts& counts = screened.counts();
  if (!alike) {
    CHECK(counts.steps + counts.too_many == 150 - 64 && !counts.given_up && r.weight_bytes() == bytes, "%d and %d steps", static_cast<int>(counts.steps), static_cast<int>(counts.too_many));
    return;
  }
  CHECK(counts.given_up && counts.steps == 0 && counts.too_many < 60, "a screen that leaves all rows ran %d times", static_cast<int>(counts.too_many));
  CHECK(r.weight_bytes() + screen_bytes_of(rows) == bytes && screened.bytes() == 0, "its memory is kept");
}

}  // namespace

int main() {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (Stored format : {Stored::f32, Stored::f16, Stored::bf16, Stored::q8_0})
    for (int kind : {0, 1, 2}) {
      check_bounds(random, format, kind);
      for (bool precise : {false, true})
        for (int threads : {1, 2, 3}) check_equal_tokens(random, format, kind, precise, threads);
    }
  for (bool alike : {false, true}) check_giving_up(random, alike);
  return check::result("screened");
}
