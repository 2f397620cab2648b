// libFuzzer target, built with Clang (ctest -R fuzz runs it for a minute): a program of arbitrary instructions, a weight of arbitrary blocks in any format, KV pools of
// arbitrary sizes, and steps of arbitrary rows, ahead too, are refused with std::invalid_argument, or run inside their memory.
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "cacheir_native/runner.h"
#include "core/stored_blocks.h"

using namespace cacheir;

namespace {

constexpr int kWidth = 32, kVocabulary = 48, kRows = 4, kTokens = 8, kSequence = 512;

// The input as numbers; zeros when it ends.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // Mostly a number that may be right, sometimes any number at all.
  int64_t number() {
    const uint8_t kind = byte();
    if (kind < 200) return kind % 8 * 16;
    if (kind < 230) return static_cast<int8_t>(byte());
    int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = static_cast<int64_t>(static_cast<uint64_t>(value) << 8 | byte());
    return value;
  }
  int64_t handle() { return byte() % 9 - 1; }

 private:
  const uint8_t* data_;
  size_t left_;
};

Instruction instruction(Input& in) {
  Instruction i;
  i.opcode = static_cast<Opcode>(in.byte() % static_cast<int>(Opcode::count));
  for (int64_t* place : {&i.x, &i.residual, &i.out, &i.sum, &i.q, &i.k, &i.v, &i.cos, &i.sin})
    *place = in.byte() % 4 ? in.byte() % 8 * kWidth * kTokens * 4 : in.number();
  for (int64_t* handle : {&i.weight, &i.norm, &i.bias, &i.table, &i.inverse_frequencies, &i.group, &i.layer}) *handle = in.handle();
  for (int64_t* size : {&i.heads, &i.kv_heads, &i.head_dim, &i.dims, &i.window, &i.width}) *size = in.number();
  i.sinks = in.byte() % 4 ? in.number() : std::numeric_limits<int>::max() - in.byte() * 2;
  i.only_next = in.byte() % 2;
  i.interleaved = in.byte() % 2;
  i.head_rows = in.byte() % 2;
  if (in.byte() % 4) {  // as the pool mostly is, and the weights of three matrices are
    i.heads = i.kv_heads = 2;
    i.head_dim = 16;
    i.group = 0;
    i.layer = in.byte() % 2;
    if (i.opcode == Opcode::qkv) i.weight = in.byte() % 2 ? 3 : 6;
  }
  i.eps = 1e-5;
  i.scale = 0.25;
  return i;
}

// Two that the runner may join: a swiglu whose result goes to the linear after it, a qkv whose heads an attention turns.
void emit(Runner& runner, const char* section, Input& in) {
  const Instruction first = instruction(in);
  runner.emit(section, first);
  if (in.byte() % 2) return;
  Instruction second = instruction(in);
  if (first.opcode == Opcode::swiglu) {
    second.opcode = Opcode::linear;
    second.x = first.out;
    second.norm = in.byte() % 4 ? kNone : second.norm;
  } else if (first.opcode == Opcode::qkv) {
    second.opcode = Opcode::attention;
    second.q = first.q;
    second.group = first.group;
    second.layer = first.layer;
    second.heads = in.byte() % 4 ? first.heads : second.heads;
  } else {
    return;
  }
  runner.emit(section, second);
}

// A matrix in any format; its blocks are a few bytes of the input over and over, so any scales, NaN too.
void add_drawn_weight(Runner& runner, Input& in) {
  const Stored format = static_cast<Stored>(in.byte() % static_cast<int>(Stored::count));
  const int block = block_columns(format), rows = in.byte() % 70 + 1;
  const int columns = block == 1 ? in.byte() % 80 + 1 : block * (in.byte() % (256 / block) + 1);
  uint8_t pattern[23];
  for (uint8_t& byte : pattern) byte = in.byte();
  std::vector<uint8_t> data(static_cast<size_t>(rows) * static_cast<size_t>(columns / block) * block_bytes(format));
  for (size_t i = 0; i < data.size(); ++i) data[i] = pattern[i % sizeof pattern];
  const StoredMatrix matrix{format, data.data(), rows, columns};
  if (in.byte() % 2) runner.add_weight({matrix, matrix}, true);
  else runner.add_weight({matrix}, false);
}

void build(Runner& runner, const char* mode, Input& in) {
  static const std::vector<uint8_t> zeros(size_t{1} << 16, 0);
  runner.reserve(8 * kWidth * kTokens * 4);
  const StoredMatrix square{Stored::q8_0, zeros.data(), kWidth, kWidth}, table{Stored::q4_0, zeros.data(), kVocabulary, kWidth};
  runner.add_weight({square}, false);
  runner.add_weight({table}, false);
  runner.add_weight({square, square}, true);
  runner.add_weight({square, square, square}, false);
  const StoredMatrix halves{Stored::f16, zeros.data(), kWidth, kWidth};
  runner.add_weight({halves, halves}, true);
  runner.add_weight({halves}, false);
  runner.add_weight({halves, halves, {Stored::bf16, zeros.data(), kWidth, kWidth}}, false);
  add_drawn_weight(runner, in);
  const std::vector<float> ones(256, 1.0f);
  runner.add_vector(ones.data(), kWidth);
  runner.add_vector(ones.data(), kWidth / 4);
  runner.add_vector(ones.data(), kWidth * 3);
  runner.add_vector(ones.data(), ones.size());
  const int page_tokens = in.byte() % 4 ? 16 : static_cast<int>(in.number());
  const int heads = in.byte() % 4 ? 2 : static_cast<int>(in.number()), dim = in.byte() % 4 ? 16 : static_cast<int>(in.number());
  const int pages = static_cast<int>(in.byte()) % 8;
  // AddressSanitizer writes a byte for each eight of a pool, touched or not; what the pool itself must refuse is tried.
  const double pool_bytes = 16.0 * heads * dim * page_tokens * pages;
  if (static_cast<int64_t>(heads) * dim > 4096 || (pool_bytes > 4e9 && pool_bytes < 1e15)) throw std::invalid_argument("larger than this target tries");
  runner.open_pool(0, static_cast<KvFormat>(in.byte() % 4), 2, heads, dim, pages, page_tokens);
  const int count = in.byte() % 6 + 1;
  for (int n = 0; n < count && !in.empty(); ++n) emit(runner, mode, in);
  runner.set_output(mode, {in.byte() % 4 ? 0 : in.number(), kWidth, kTokens});
  if (in.byte() % 2) {
    const std::string head = std::string(mode) + "/head.greedy";
    runner.set_input(head, {in.byte() % 4 ? 0 : in.number(), kWidth, kRows});
    emit(runner, head.c_str(), in);
  }
  runner.finish();
}

// Rows whose sizes agree with each other, as the Python side makes them; tokens, positions and pages are anything.
void stage(Runner& runner, bool one_each, Input& in) {
  runner.clear_step();
  Step& step = runner.step();
  GroupInputs& group = step.groups.at(0);
  group.width = in.byte() % 2 ? kSequence / 16 : in.byte() % 4;
  const int rows = in.byte() % (kRows + 2);
  for (int r = 0; r < rows; ++r) {
    StepRow row;
    row.slot = r;
    row.position = static_cast<int32_t>(in.byte() % 4 ? in.byte() * 2 : in.number());
    row.tokens = one_each && in.byte() % 8 ? 1 : in.byte() % 4 + 1;
    row.want = in.byte() % 2 ? Want::token : Want::nothing;
    for (int t = 0; t < row.tokens; ++t) step.tokens.push_back(static_cast<int32_t>(in.byte() % 4 ? in.byte() % kVocabulary : in.number()));
    row.first_head_row = static_cast<int32_t>(step.head_rows.size());
    if (row.want == Want::token) {
      step.head_rows.push_back(static_cast<int32_t>(step.tokens.size()) - 1);
      step.owners.push_back(r);
      row.head_rows = 1;
    }
    for (int p = 0; p < group.width; ++p) group.page_table.push_back(in.byte() % 4 ? in.byte() % 8 : static_cast<int32_t>(in.number()));
    step.rows.push_back(row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  try {
    const int threads = in.byte() % 16 == 15 ? 2 : 1;
    RunnerOptions options{kRows, kTokens, kSequence, kVocabulary, threads, false, in.byte() % 2 == 0};
    options.screening = in.byte() % 2 ? Screening::always : Screening::automatic;
    Runner runner(options);
    const bool decode = in.byte() % 2;
    build(runner, decode ? "decode" : "prefill", in);
    stage(runner, decode, in);
    runner.begin(decode ? "decode" : "prefill");
    if (decode && in.byte() % 2) {
      const int steps = in.byte() % 40 + 1;
      std::vector<int32_t> tokens(static_cast<size_t>(steps * (kRows + 2)));
      runner.run_ahead(steps, 10.0, tokens.data());
    }
    runner.run_main();
    StepResult result;
    runner.run_heads(result);
  } catch (const std::invalid_argument&) {
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
