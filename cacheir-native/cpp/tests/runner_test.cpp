// A small decoder with random weights: equal bits for any chunking, neighbours and threads; wrong programs are refused.
#include <stdexcept>

#include "small_decoder.h"

using namespace check;

namespace {

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
    const int done = r.run_ahead(24, 1e6, ahead.data());
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
  refuses("running a step that was not filled to its end", [&] {
    stage(r, "decode", {{0, 0, {1}, 0, Want::token}});
    r.clear_step();
    r.run_main();
  });
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
