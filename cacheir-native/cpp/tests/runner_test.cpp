// A small decoder with random weights: equal bits for any chunking, neighbours and threads; wrong programs are refused.
#include <functional>
#include <memory>
#include <stdexcept>

#include "cacheir_native/runner.h"
#include "check.h"

using namespace cacheir;

namespace {

constexpr int kHidden = 64, kFeed = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kVocabulary = 211, kLayers = 2, kPages = 64;

struct Model {
  std::vector<std::vector<uint8_t>> bytes;  // what was packed
  std::unique_ptr<Runner> runner;
};

// `apart`: nothing says that a swiglu's result goes to the next product alone, so that it is written as rows.
Model build(unsigned seed, int threads, bool precise, KvFormat kv, bool apart = false) {
  std::mt19937 random(seed);
  Model model;
  model.runner = std::make_unique<Runner>(RunnerOptions{8, 64, 512, kVocabulary, threads, false, precise});
  Runner& r = *model.runner;
  const auto weight = [&](std::vector<std::pair<Stored, int>> parts, int columns, bool pair = false) {
    std::vector<StoredMatrix> matrices;
    for (auto [format, rows] : parts) {
      model.bytes.push_back(check::stored(random, format, rows, columns));
      matrices.push_back({format, model.bytes.back().data(), rows, columns});
    }
    return r.add_weight(matrices, pair);
  };
  const auto vector = [&](int n) {
    const std::vector<float> values = check::normal(random, static_cast<size_t>(n));
    return r.add_vector(values.data(), values.size());
  };
  const auto place = [&](int width) { return r.reserve(static_cast<size_t>(64 * width * 4)); };
  const int64_t table = weight({{Stored::q8_0, kVocabulary}}, kHidden);
  const int64_t h = place(kHidden), mid = place(kHidden), q = place(kHidden), a = place(kHidden), product = place(kFeed), cos = place(4), sin = place(4),
                gathered = place(kHidden), rows = place(kHidden), input = place(kHidden), logits = place(kVocabulary);
  const std::vector<float> frequencies = {1.0f, 0.3f, 0.1f, 0.03f};
  const int64_t inverse = r.add_vector(frequencies.data(), frequencies.size());
  r.open_pool(0, kv, kLayers, kKvHeads, kDim, kPages, 16);
  Instruction i;
  const auto emit = [&](const std::string& section, Opcode opcode, const std::function<void(Instruction&)>& fill) {
    i = Instruction{};
    i.opcode = opcode;
    i.eps = 1e-5;
    fill(i);
    r.emit(section, i);
  };
  std::vector<std::array<int64_t, 6>> layers;
  for (int l = 0; l < kLayers; ++l)
    layers.push_back({vector(kHidden), weight({{Stored::q4_0, kHeads * kDim}, {Stored::q8_0, kKvHeads * kDim}, {Stored::q5_1, kKvHeads * kDim}}, kHidden),
                      weight({{Stored::q4_1, kHidden}}, kHidden), vector(kHidden), weight({{l ? Stored::f16 : Stored::q5_0, kFeed}, {l ? Stored::bf16 : Stored::q8_0, kFeed}}, kHidden, true),
                      weight({{Stored::f16, kHidden}}, kFeed)});
  for (const char* mode : {"prefill", "decode"}) {
    emit(mode, Opcode::embedding, [&](Instruction& x) { x.table = table; x.out = h; });
    emit(mode, Opcode::rope_table, [&](Instruction& x) { x.inverse_frequencies = inverse; x.dims = 8; x.cos = cos; x.sin = sin; });
    for (int l = 0; l < kLayers; ++l) {
      const auto& w = layers[static_cast<size_t>(l)];
      emit(mode, Opcode::qkv, [&](Instruction& x) {
        x.x = h; x.weight = w[1]; x.norm = w[0]; x.cos = cos; x.sin = sin; x.dims = 8; x.heads = kHeads; x.kv_heads = kKvHeads; x.head_dim = kDim; x.q = q; x.group = 0; x.layer = l;
      });
      emit(mode, Opcode::attention, [&](Instruction& x) { x.q = q; x.out = a; x.group = 0; x.layer = l; x.heads = kHeads; x.window = l ? 40 : 0; x.sinks = l ? 5 : 0; });
      emit(mode, Opcode::linear, [&](Instruction& x) { x.x = a; x.weight = w[2]; x.out = mid; x.residual = h; });
      emit(mode, Opcode::swiglu, [&](Instruction& x) { x.x = mid; x.weight = w[4]; x.norm = w[3]; x.out = product; x.only_next = !apart; });
      emit(mode, Opcode::linear, [&](Instruction& x) { x.x = product; x.weight = w[5]; x.out = h; x.residual = mid; });
    }
    emit(mode, Opcode::gather_rows, [&](Instruction& x) { x.x = h; x.width = kHidden; x.out = gathered; });
    emit(mode, Opcode::rms_norm, [&](Instruction& x) { x.x = gathered; x.norm = layers[0][0]; x.width = kHidden; x.out = rows; x.head_rows = 1; });
    r.set_output(mode, {rows, kHidden, 0});
    for (const char* head : {"head.greedy", "head.sampled", "head.logits"}) {
      const std::string section = std::string(mode) + "/" + head;
      r.set_input(section, {input, kHidden, 5});
      if (section.ends_with("greedy")) {
        emit(section, Opcode::head_argmax, [&](Instruction& x) { x.x = input; x.weight = table; });
      } else {
        emit(section, Opcode::linear, [&](Instruction& x) { x.x = input; x.weight = table; x.out = logits; });
        if (section.ends_with("sampled")) emit(section, Opcode::sample, [&](Instruction& x) { x.x = logits; x.width = kVocabulary; });
        r.set_logits(section, {logits, kVocabulary, 0});
      }
    }
  }
  r.finish();
  return model;
}

struct GivenRow {
  int slot, position;
  std::vector<int32_t> tokens;
  int first_page;
  Want want;
  Sampling sampling = {};
};

void stage(Runner& r, const std::string& mode, const std::vector<GivenRow>& rows) {
  r.clear_step();
  Step& s = r.step();
  s.groups[0].width = 32;
  int start = 0;
  for (const GivenRow& given : rows) {
    StepRow row;
    row.slot = given.slot;
    row.position = given.position;
    row.tokens = static_cast<int32_t>(given.tokens.size());
    row.want = given.want;
    row.sampling = given.sampling;
    s.tokens.insert(s.tokens.end(), given.tokens.begin(), given.tokens.end());
    if (given.want != Want::nothing) {
      s.head_rows.push_back(start + row.tokens - 1);
      s.owners.push_back(static_cast<int32_t>(s.rows.size()));
      row.head_rows = 1;
    }
    for (int p = 0; p < 32; ++p) s.groups[0].page_table.push_back((given.first_page + p) % kPages);
    s.masks.insert(s.masks.end(), (kVocabulary + 31) / 32, 0xffffffffu);
    s.rows.push_back(row);
    start += row.tokens;
  }
  r.begin(mode);
}

std::vector<float> logits_of(Runner& r, const std::string& mode, const std::vector<GivenRow>& rows, size_t wanted) {
  stage(r, mode, rows);
  StepResult result;
  std::vector<float> logits(wanted * kVocabulary);
  result.logits = logits.data();
  r.run_main();
  r.run_heads(result);
  return logits;
}

void check_equal_bits(unsigned seed, bool precise, KvFormat kv) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(150);
  for (int32_t& t : prompt) t = static_cast<int32_t>(random() % kVocabulary);
  std::vector<float> expected;
  for (int threads : {1, 2, 3}) {
    Model model = build(seed, threads, precise, kv, threads == 2);
    Runner& r = *model.runner;
    for (int way = 0; way < 3; ++way) {
      std::vector<float> logits;
      for (size_t at = 0; at < prompt.size();) {
        const size_t most = way == 0 ? 64 : way == 1 ? 1 + random() % 13 : 1;
        const size_t n = std::min(most, prompt.size() - at);
        const bool last = at + n == prompt.size();
        std::vector<GivenRow> rows{{0, static_cast<int>(at), {prompt.begin() + static_cast<long>(at), prompt.begin() + static_cast<long>(at + n)}, 0, last ? Want::logits : Want::nothing}};
        if (way == 1) rows.insert(rows.begin(), {1, static_cast<int>(at), {prompt[at], prompt[0]}, 32, Want::token});  // a neighbour
        const std::string mode = way == 2 ? "decode" : "prefill";
        logits = logits_of(r, mode, rows, 1);
        at += n;
      }
      if (expected.empty()) expected = logits;
      CHECK(logits == expected, "%d threads, way %d, precise %d, kv %d: other bits", threads, way, precise, static_cast<int>(kv));
      for (float x : logits) CHECK(std::isfinite(x), "a logit is not finite");
    }
    // Running ahead equals single steps.
    stage(r, "decode", {{0, 150, {prompt[3]}, 0, Want::token}, {1, 20, {prompt[5]}, 32, Want::token, Sampling{0.8f, 0.9f, 0.01f, 40, 1234567}}});
    std::vector<int32_t> ahead(2 * 24);
    const int done = r.run_ahead(24, 10.0, ahead.data());
    CHECK(done == 24, "ran %d of 24 steps ahead", done);
    int32_t tokens[2] = {prompt[3], prompt[5]};
    for (int n = 0; n < done; ++n) {
      stage(r, "decode", {{0, 150 + n, {tokens[0]}, 0, Want::token}, {1, 20 + n, {tokens[1]}, 32, Want::token, Sampling{0.8f, 0.9f, 0.01f, 40, 1234567}}});
      r.step().rows[1].draw = n;
      StepResult result;
      r.run_main();
      r.run_heads(result);
      for (size_t b = 0; b < 2; ++b) {
        tokens[b] = result.tokens[b];
        CHECK(tokens[b] == ahead[static_cast<size_t>(n) * 2 + b] && tokens[b] >= 0, "step %d ahead gave %d, alone %d", n, ahead[static_cast<size_t>(n) * 2 + b], tokens[b]);
      }
    }
  }
}

template <class F> void refuses(const char* what, F f) {
  try {
    f();
  } catch (const std::invalid_argument&) {
    return;
  }
  CHECK(false, "%s was not refused", what);
}

void check_refusals() {
  Model model = build(1, 1, false, KvFormat::f32);
  Runner& r = *model.runner;
  refuses("a token beyond the vocabulary", [&] { stage(r, "decode", {{0, 0, {kVocabulary}, 0, Want::token}}); });
  refuses("two tokens in decode", [&] { stage(r, "decode", {{0, 0, {1, 2}, 0, Want::token}}); });
  refuses("a position past the end", [&] { stage(r, "prefill", {{0, 511, {1, 2}, 0, Want::token}}); });
  refuses("an unknown mode", [&] { stage(r, "other", {{0, 0, {1}, 0, Want::token}}); });
  refuses("running a step that was refused", [&] { r.run_main(); });
  refuses("more head rows than tokens", [&] {
    stage(r, "decode", {{0, 0, {1}, 0, Want::token}});
    r.step().head_rows.assign(9, 0);
    r.step().owners.assign(9, 0);
    r.step().positions.clear();
    r.begin("decode");
  });
  refuses("too many tokens", [&] { stage(r, "prefill", {{0, 0, std::vector<int32_t>(65, 1), 0, Want::token}}); });
  refuses("a place outside the arena", [&] {
    Runner other(RunnerOptions{1, 4, 16, 8, 1, false, false});
    const float one[16] = {};
    Instruction i;
    i.opcode = Opcode::rms_norm;
    i.norm = other.add_vector(one, 16);
    i.width = 16;
    i.x = other.reserve(4 * 16 * 4);
    i.out = i.x + 64;
    other.emit("prefill", i);
    other.finish();
  });
  // A main of rows of 16 numbers, and a head of one instruction.
  const auto with_head = [](Opcode opcode, int input_width, int logits_width) {
    Runner other(RunnerOptions{1, 4, 16, 8, 1, false, false});
    Instruction i;
    i.opcode = opcode;
    i.width = 8;
    i.x = i.out = other.reserve(4 * 32 * 4);
    other.set_output("prefill", {i.x, 16, 0});
    other.set_input("prefill/head.logits", {i.x, input_width, 4});
    other.emit("prefill/head.logits", i);
    other.set_logits("prefill/head.logits", {i.x, logits_width, 0});
    other.finish();
  };
  with_head(Opcode::copy, 16, 8);
  refuses("a head of narrower rows than main's", [&] { with_head(Opcode::copy, 8, 8); });
  refuses("logits of another width than the vocabulary's", [&] { with_head(Opcode::copy, 16, 9); });
  refuses("a head that gathers from the step", [&] { with_head(Opcode::gather_rows, 16, 8); });
  refuses("a KV pool larger than any memory", [&] {
    Runner other(RunnerOptions{1, 4, 16, 8, 1, false, false});
    other.open_pool(0, KvFormat::f32, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 16);
  });
}

}  // namespace

int main() {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  for (bool precise : {false, true})
    for (KvFormat kv : {KvFormat::f32, KvFormat::int8}) check_equal_bits(seed, precise, kv);
  check_refusals();
  return check::result("runner");
}
