// Operands of every instruction: handles exist, widths agree, places lie in the arena for the most rows.
#include "core/program_check.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "cacheir_native/runner.h"
#include "core/opcodes.h"

namespace cacheir {

struct Checker {
  const Runner& runner;
  Needs needs;
  std::string section_name;
  size_t index = 0;
  int rows = 0;

  [[noreturn]] void fail(const std::string& what) const {
    const Instruction& i = runner.sections_.at(section_name).code[index];
    throw std::invalid_argument("instruction " + std::to_string(index) + " (" + opcode_name(i.opcode) + ") of section '" +
                                section_name + "': " + what);
  }

  void place(int64_t at, size_t width, const char* name) const {
    if (at < 0 || at % 4 || static_cast<size_t>(at) > runner.arena_bytes_ ||
        (runner.arena_bytes_ - static_cast<size_t>(at)) / 4 / static_cast<size_t>(rows) < width)
      fail(std::string(name) + " lies at " + std::to_string(at) + ", but " + std::to_string(rows) + " rows of " + std::to_string(width) +
           " numbers from there on are not in the arena");
  }

  void vector(int64_t handle, size_t length, const char* name) const {
    if (handle < 0 || static_cast<size_t>(handle) >= runner.vectors_.size()) fail(std::string(name) + " is no handle of add_vector");
    if (runner.vectors_[static_cast<size_t>(handle)].second != length)
      fail(std::string(name) + " has " + std::to_string(runner.vectors_[static_cast<size_t>(handle)].second) + " elements, not " + std::to_string(length));
  }

  bool is_head() const { return section_name.find('/') != std::string::npos; }

  const Weight& weight(int64_t handle, const char* name, bool pair) {
    if (handle < 0 || static_cast<size_t>(handle) >= runner.weights_.size()) fail(std::string(name) + " is no handle of add_weight");
    const Weight& w = runner.weights_[static_cast<size_t>(handle)];
    if (w.pair != pair) fail(std::string(name) + (pair ? " must be a pair" : " must not be a pair"));
    return w;
  }

  void product(const Instruction& i, const Weight& w) {
    needs.columns = std::max(needs.columns, static_cast<size_t>(w.columns));
    place(i.x, static_cast<size_t>(w.columns), "x");
    if (i.norm != kNone) vector(i.norm, static_cast<size_t>(w.columns), "norm");
    if (i.bias != kNone) vector(i.bias, static_cast<size_t>(w.pair ? 2 * w.rows : w.rows), "bias");
  }

  size_t positive(int64_t value, const char* name) const {
    if (value < 1 || value > (int64_t{1} << 31)) fail(std::string(name) + " must be positive, not " + std::to_string(value));
    return static_cast<size_t>(value);
  }

  void rotation(const Instruction& i) const {
    if (i.dims < 2 || i.dims % 2 || i.dims > i.head_dim) fail("dims must be even and at most head_dim");
    place(i.cos, static_cast<size_t>(i.dims / 2), "cos");
    place(i.sin, static_cast<size_t>(i.dims / 2), "sin");
  }

  const KvPool& pool(const Instruction& i) const {
    if (i.group < 0 || static_cast<size_t>(i.group) >= runner.pools_.size() || !runner.pools_[static_cast<size_t>(i.group)])
      fail("KV group " + std::to_string(i.group) + " has no pages: call open_pool before finish");
    const KvPool& pool = *runner.pools_[static_cast<size_t>(i.group)];
    if (i.layer < 0 || i.layer >= pool.layers()) fail("layer " + std::to_string(i.layer) + " is no row of its pool");
    return pool;
  }

  void main_alone() const {
    if (is_head()) fail("it goes over the tokens of a step, of which a head section has none");
  }

  void attention(const Instruction& i) {
    main_alone();
    const KvPool& kv = pool(i);
    const size_t heads = positive(i.heads, "heads"), dim = static_cast<size_t>(kv.head_dim()), padded = round_up(dim, 16);
    if (heads % static_cast<size_t>(kv.heads())) fail("heads must be a multiple of the pool's");
    place(i.q, heads * dim, "q");
    place(i.out, heads * dim, "out");
    if (i.window < 0 || i.window > std::numeric_limits<int>::max()) fail("window must be a number of keys from 0 on that fits an int");
    if (i.sinks < 0 || i.sinks > std::numeric_limits<int>::max() - kChunkKeys) fail("sinks must be a number of keys from 0 on that fits an int");
    if (!(i.softcap >= 0)) fail("softcap must not be negative");
    const size_t group = static_cast<size_t>(i.group);
    if (needs.windows.size() <= group) needs.windows.resize(group + 1, -1);
    if (needs.sinks.size() <= group) needs.sinks.resize(group + 1, 0);
    needs.sinks[group] = std::max(needs.sinks[group], std::min(static_cast<int>(i.sinks), runner.options_.max_seq));
    int& window = needs.windows[group];
    window = i.window == 0 || window == 0 ? 0 : std::max(window, static_cast<int>(i.window));
    needs.attend_floats = std::max(needs.attend_floats, attend_scratch_floats(kv.head_dim()) + kMaxQueryRows * (padded + 2) + 64);
    const size_t chunks = static_cast<size_t>(runner.options_.max_seq + kChunkKeys - 1) / kChunkKeys;
    const size_t tasks = static_cast<size_t>(kFewTasks * runner.threads());
    needs.partial_floats = std::max(needs.partial_floats, tasks * chunks * kRoundedQueryRows * (padded + 2));
  }

  void qkv(const Instruction& i) {
    const Weight& w = weight(i.weight, "weight", false);
    product(i, w);
    const size_t dim = positive(i.head_dim, "head_dim"), heads = positive(i.heads, "heads"), kv_heads = positive(i.kv_heads, "kv_heads");
    if (static_cast<size_t>(w.rows) != (heads + 2 * kv_heads) * dim) fail("weight must have (heads + 2 kv_heads) * head_dim rows");
    needs.qkv_columns = std::max(needs.qkv_columns, static_cast<size_t>(w.rows));
    place(i.q, heads * dim, "q");
    if (i.cos != kNone) rotation(i);
    if (i.group != kNone) {
      main_alone();
      if (pool(i).heads() != i.kv_heads || pool(i).head_dim() != i.head_dim) fail("the pool has other heads");
    } else {
      place(i.k, kv_heads * dim, "k");
      place(i.v, kv_heads * dim, "v");
    }
  }

  void instruction(const Instruction& i) {
    const size_t width = static_cast<size_t>(i.width);
    if (i.head_rows && is_head()) fail("head_rows is for main: the rows of a head section are its own");
    switch (i.opcode) {
      case Opcode::embedding: place(i.out, static_cast<size_t>(weight(i.table, "table", false).columns), "out"); break;
      case Opcode::rope_table:
        vector(i.inverse_frequencies, static_cast<size_t>(i.dims / 2), "inverse_frequencies");
        place(i.cos, static_cast<size_t>(i.dims / 2), "cos");
        place(i.sin, static_cast<size_t>(i.dims / 2), "sin");
        break;
      case Opcode::add_rms_norm:
        if (i.heads > 1) fail("heads is for rms_norm alone");
        place(i.residual, positive(i.width, "width"), "residual");
        place(i.sum, width, "sum");
        [[fallthrough]];
      case Opcode::rms_norm:
        vector(i.norm, positive(i.width, "width"), "norm");
        place(i.x, width * static_cast<size_t>(std::max<int64_t>(i.heads, 1)), "x");
        place(i.out, width * static_cast<size_t>(std::max<int64_t>(i.heads, 1)), "out");
        break;
      case Opcode::linear: {
        const Weight& w = weight(i.weight, "weight", false);
        product(i, w);
        place(i.out, static_cast<size_t>(w.rows), "out");
        if (i.residual != kNone) place(i.residual, static_cast<size_t>(w.rows), "residual");
        break;
      }
      case Opcode::qkv: qkv(i); break;
      case Opcode::rope:
        rotation(i);
        place(i.x, positive(i.heads, "heads") * positive(i.head_dim, "head_dim"), "x");
        place(i.out, static_cast<size_t>(i.heads * i.head_dim), "out");
        break;
      case Opcode::kv_append: {
        main_alone();
        const KvPool& kv = pool(i);
        place(i.k, static_cast<size_t>(kv.heads() * kv.head_dim()), "k");
        place(i.v, static_cast<size_t>(kv.heads() * kv.head_dim()), "v");
        break;
      }
      case Opcode::attention: attention(i); break;
      case Opcode::swiglu: {
        const Weight& w = weight(i.weight, "weight", true);
        product(i, w);
        place(i.out, static_cast<size_t>(w.rows), "out");
        break;
      }
      case Opcode::silu_multiply: case Opcode::add: case Opcode::multiply:
        place(i.residual, positive(i.width, "width"), "residual");
        [[fallthrough]];
      case Opcode::silu: case Opcode::copy: case Opcode::gather_rows:
        if (i.opcode == Opcode::gather_rows) main_alone();
        place(i.x, positive(i.width, "width"), "x");
        place(i.out, width, "out");
        break;
      case Opcode::head_argmax: {
        const Weight& w = weight(i.weight, "weight", false);
        product(i, w);
        if (w.rows > runner.options_.vocabulary) fail("weight has more rows than the vocabulary has tokens");
        break;
      }
      case Opcode::sample:
        if (!is_head()) fail("only a head samples: main has no rows that were picked");
        if (i.width != runner.options_.vocabulary) fail("width must be the vocabulary's");
        place(i.x, width, "x");
        needs.samples = true;
        break;
      default: fail("is no opcode");
    }
  }

  void region(const Region& r, const char* name, int most) const {
    if (r.place == kNone) return;
    const size_t bytes = static_cast<size_t>(most) * static_cast<size_t>(std::max(r.width, 0)) * 4;
    if (r.place < 0 || r.width < 1 || most < 1 || static_cast<size_t>(r.place) + bytes > runner.arena_bytes_)
      throw std::invalid_argument("the " + std::string(name) + " of section '" + section_name + "' does not lie in the arena");
  }

  void section(const std::string& name, const Section& s) {
    section_name = name;
    const bool head = is_head();
    const int most = head ? s.input.rows : name == "decode" ? runner.options_.max_rows : runner.options_.max_tokens;
    region(s.output, "output", most);
    region(s.input, "input", most);
    region(s.logits, "logits", most);
    if (head && s.input.place == kNone) throw std::invalid_argument("head section '" + name + "' has no input: call set_input");
    const auto main = runner.sections_.find(name.substr(0, name.find('/')));
    if (head && main != runner.sections_.end() && main->second.output.width != s.input.width)
      throw std::invalid_argument("head section '" + name + "' takes rows of " + std::to_string(s.input.width) + " numbers, but main gives rows of " +
                                  std::to_string(main->second.output.width));
    if (s.logits.place != kNone && s.logits.width != runner.options_.vocabulary)
      throw std::invalid_argument("the logits of section '" + name + "' must be as wide as the vocabulary");
    rows = most;
    for (index = 0; index < s.code.size(); ++index) instruction(s.code[index]);
  }

  void program() {
    for (const auto& [name, code] : runner.sections_) section(name, code);
  }
};

Needs check_program(const Runner& runner) {
  Checker checker{runner, {}, {}, 0, 0};
  checker.program();
  return checker.needs;
}

}  // namespace cacheir
