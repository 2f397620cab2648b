// A small decoder with random weights of many formats, and how rows are staged for it.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cacheir_native/runner.h"
#include "check.h"

namespace check {

using namespace cacheir;

inline constexpr int kHidden = 64, kFeed = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kVocabulary = 211, kLayers = 2, kPages = 64;

struct Model {
  std::vector<std::vector<uint8_t>> bytes;  // what was packed
  std::unique_ptr<Runner> runner;
};

// `apart`: nothing says that a swiglu's result goes to the next product alone, so that it is written as rows.
inline Model build(unsigned seed, int threads, bool precise, KvFormat kv, bool apart = false, Screening screening = Screening::automatic) {
  std::mt19937 random(seed);
  Model model;
  RunnerOptions options{8, 64, 512, kVocabulary, threads, false, precise};
  options.screening = screening;
  model.runner = std::make_unique<Runner>(options);
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

inline void stage(Runner& r, const std::string& mode, const std::vector<GivenRow>& rows) {
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

}  // namespace check
