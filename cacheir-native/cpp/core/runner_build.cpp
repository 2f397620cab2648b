// Building a runner: weights are packed, instructions collected, workspace sized.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cacheir_native/runner.h"
#include "core/dispatch.h"
#include "core/program_check.h"
#include "core/stored_blocks.h"

namespace cacheir {
namespace {

// Matrices to pack, their panels numbered through.
struct PackJob {
  ThreadPool* pool;
  std::vector<StoredMatrix> from;
  std::vector<Matrix> to;
  std::vector<int> first;  // number of each matrix's first panel
  int panels = 0;

  void add(const StoredMatrix& matrix, const Matrix& packed) {
    from.push_back(matrix);
    to.push_back(packed);
    first.push_back(panels);
    if (packed.panels > INT32_MAX / 2 - panels) throw std::invalid_argument("too many rows are packed at once");
    panels += packed.panels;
  }
};

// Workers meet once, when all is packed: at load the program's own thread wants a processor too, and each time that they
// met they would wait for the one that had to give its own away.
void pack_worker(void* context, int) {
  const PackJob& job = *static_cast<PackJob*>(context);
  constexpr int grain = 8;
  size_t at = 0;
  while (true) {
    auto [panel, count] = job.pool->next_piece(job.panels, grain);
    if (count == 0) return;
    for (const int last = panel + count; panel < last;) {
      while (at + 1 < job.first.size() && job.first[at + 1] <= panel) ++at;
      const int end = std::min(last, job.first[at] + job.to[at].panels);
      pack_panels(job.from[at], job.to[at], panel - job.first[at], end - job.first[at]);
      panel = end;
    }
  }
}

}  // namespace

Runner::Runner(const RunnerOptions& options) : options_(options), table_(chosen_table()), pool_(options.threads, options.pin) {
  if (options.max_rows < 1 || options.max_tokens < options.max_rows || options.max_seq < 1 || options.vocabulary < 1)
    throw std::invalid_argument("max_rows, max_tokens, max_seq and vocabulary must be positive, max_tokens at least max_rows");
}

int64_t Runner::reserve(size_t bytes) {
  if (finished_) throw std::invalid_argument("the arena cannot grow after finish()");
  const size_t place = arena_bytes_;
  arena_bytes_ = round_up(place + bytes, 64);
  return static_cast<int64_t>(place);
}

Weight Runner::lay_out(const std::vector<StoredMatrix>& matrices, bool pair) {
  if (matrices.empty() || (pair && matrices.size() != 2)) throw std::invalid_argument("a weight takes at least one matrix, a pair two");
  Weight weight;
  weight.pair = pair;
  weight.columns = matrices[0].columns;
  for (const StoredMatrix& m : matrices) {
    if (m.columns != weight.columns || (pair && m.rows != matrices[0].rows))
      throw std::invalid_argument("matrices of one weight must have equal columns, those of a pair equal rows");
    const Panel format = panel_of(m.format, options_.precise, table_.bf16_dot != 0);
    const int panels = (m.rows + kPanelRows - 1) / kPanelRows;
    weight.parts.push_back({format, nullptr, panel_bytes(format, m.columns), m.rows, m.columns, panels});
    weight.kinds.push_back(activations_of(format, options_.precise, table_.bf16_dot != 0));
    weight.first_column.push_back(weight.rows);
    weight.rows += pair && weight.parts.size() == 2 ? 0 : m.rows;
  }
  if (pair && weight.kinds[0] != weight.kinds[1]) throw std::invalid_argument("gate and up need activations of different kinds");
  const bool interleaved = pair && weight.parts[0].format == weight.parts[1].format;
  size_t bytes = 0;
  for (const Matrix& m : weight.parts) bytes += m.stride * static_cast<size_t>(m.panels);
  uint8_t* data = weights_memory_.allocate(bytes);
  for (Matrix& m : weight.parts) {
    m.data = data;
    data += interleaved ? m.stride : m.stride * static_cast<size_t>(m.panels);
    if (interleaved) m.stride *= 2;
  }
  return weight;
}

int64_t Runner::add_weight(const std::vector<StoredMatrix>& matrices, bool pair) { return add_weights({{matrices, pair}}).front(); }

std::vector<int64_t> Runner::add_weights(const std::vector<GivenWeight>& given) {
  PackJob job{&pool_, {}, {}, {}};
  std::vector<Weight> made;
  for (const auto& [matrices, pair] : given) {
    made.push_back(lay_out(matrices, pair));
    for (size_t i = 0; i < matrices.size(); ++i) job.add(matrices[i], made.back().parts[i]);
  }
  pool_.run(pack_worker, &job);
  std::vector<int64_t> handles;
  for (Weight& weight : made) {
    handles.push_back(static_cast<int64_t>(weights_.size()));
    weights_.push_back(std::move(weight));
  }
  return handles;
}

int64_t Runner::add_vector(const float* values, size_t count) {
  float* copy = reinterpret_cast<float*>(weights_memory_.allocate((count + 16) * 4));
  std::memcpy(copy, values, count * 4);
  vectors_.emplace_back(copy, count);
  return static_cast<int64_t>(vectors_.size() - 1);
}

void Runner::open_pool(int group, KvFormat format, int layers, int heads, int head_dim, int pages, int page_tokens) {
  if (group < 0 || group > 1023) throw std::invalid_argument("a KV group's number must be from 0 to 1023");
  const size_t index = static_cast<size_t>(group);
  if (pools_.size() <= index) pools_.resize(index + 1);
  pools_[index] = nullptr;  // let go of the old pages first
  pools_[index] = std::make_unique<KvPool>(table_, format, layers, heads, head_dim, pages, page_tokens);
}

int Runner::emit(const std::string& name, const Instruction& instruction) {
  if (finished_) throw std::invalid_argument("no instruction can be added after finish()");
  std::vector<Instruction>& code = sections_[name].code;
  code.push_back(instruction);
  return static_cast<int>(code.size()) - 1;
}

void Runner::finish() {
  if (finished_) throw std::invalid_argument("finish() was called already");
  arena_ = HugeMemory(arena_bytes_ + 64);
  const Needs needs = check_program(*this);
  finished_ = true;
  windows_ = needs.windows;
  windows_.resize(std::max(windows_.size(), pools_.size()), -1);
  sinks_ = needs.sinks;
  sinks_.resize(windows_.size(), 0);
  join_tiles();
  find_modes();
  const size_t workers = static_cast<size_t>(threads()), rows = static_cast<size_t>(options_.max_tokens);
  const size_t columns = needs.columns;
  shared_.reserve(workspace_, rows, columns);
  own_.resize(workers);
  for (ActivationBuffer& buffer : own_) buffer.reserve(workspace_, 8, columns);
  const size_t scratch = std::max(round_up(columns, 64), needs.attend_floats) + 64;
  for (size_t i = 0; i < workers; ++i) {
    scratch_.push_back(reinterpret_cast<float*>(workspace_.allocate(scratch * 4)));
    best_.push_back({reinterpret_cast<float*>(workspace_.allocate(rows * 4)),
                     reinterpret_cast<int32_t*>(workspace_.allocate(rows * 4)), workspace_.allocate(rows)});
    if (needs.samples) samplers_.emplace_back(options_.vocabulary);
  }
  qkv_ = reinterpret_cast<float*>(workspace_.allocate(rows * needs.qkv_columns * 4));
  partials_ = reinterpret_cast<float*>(workspace_.allocate(needs.partial_floats * 4));
  screen_heads();
  const size_t batch = static_cast<size_t>(options_.max_rows);
  step_.rows.reserve(batch);
  for (auto* list : {&step_.tokens, &step_.positions, &step_.head_rows, &step_.owners, &picked_, &head_tokens_}) list->reserve(rows);
  step_.row_starts.reserve(batch + 1);
  step_.masks.reserve(batch * static_cast<size_t>((options_.vocabulary + 31) / 32));
  head_kind_.reserve(batch);
}

// A screen for each head that one serves; modes share it with the weight.
void Runner::screen_heads() {
  if (options_.screening == Screening::off) return;
  for (const auto& [name, mode] : modes_) {
    if (!mode.heads[0]) continue;
    for (const Instruction& i : mode.heads[0]->code) {
      if (i.opcode != Opcode::head_argmax || i.bias != kNone || i.norm != kNone) continue;
      const Weight& w = weights_[static_cast<size_t>(i.weight)];
      const auto known = [&](const auto& screened) { return screened->weight() == i.weight; };
      if (w.parts.size() != 1 || !can_be_screened(w.parts[0]) || std::any_of(screened_heads_.begin(), screened_heads_.end(), known)) continue;
      const bool always = options_.screening == Screening::always;
      if (!always && !is_worth_screening(w.parts[0])) continue;
      screened_heads_.push_back(std::make_unique<ScreenedHead>(i.weight, w.parts[0], w.kinds[0], always, threads(), workspace_));
    }
  }
}

size_t Runner::weight_bytes() const {
  size_t bytes = weights_memory_.used();
  for (const auto& screened : screened_heads_) bytes += screened->bytes();
  return bytes;
}

void Runner::find_modes() {
  for (const auto& [name, main] : sections_) {
    if (name.find('/') != std::string::npos) continue;
    Mode& mode = modes_[name];
    mode.name = name;
    mode.main = &main;
    mode.decode = name == "decode";
    for (size_t h = 0; h < kHeads.size(); ++h) {
      mode.head_names[h] = name + "/" + kHeads[h];
      const auto found = sections_.find(mode.head_names[h]);
      mode.heads[h] = found == sections_.end() ? nullptr : &found->second;
    }
  }
}

// A swiglu writes the tiles that the product after it multiplies, in the place of its rows, where that product alone reads
// them and both have activations of bf16: each value is rounded once either way, and nothing is packed in between.
void Runner::join_tiles() {
  for (auto& [name, section] : sections_)
    for (size_t at = 0; at + 1 < section.code.size(); ++at) {
      Instruction &maker = section.code[at], &reader = section.code[at + 1];
      if (maker.opcode != Opcode::swiglu || !maker.only_next || reader.opcode != Opcode::linear) continue;
      if (reader.x != maker.out || reader.residual == maker.out || reader.norm != kNone || reader.head_rows != maker.head_rows) continue;
      const Weight &from = weights_[static_cast<size_t>(maker.weight)], &to = weights_[static_cast<size_t>(reader.weight)];
      const auto is_bf16 = [](Act kind) { return kind == Act::bf16; };
      if (from.rows != to.columns || !is_bf16(from.kinds[0]) || !std::all_of(to.kinds.begin(), to.kinds.end(), is_bf16)) continue;
      maker.tiles = reader.tiles = 1;
    }
}

Slot& Runner::slot(int number) { return slots_[number]; }

KvPool& Runner::pool(int group) {
  if (group < 0 || static_cast<size_t>(group) >= pools_.size() || !pools_[static_cast<size_t>(group)])
    throw std::invalid_argument("KV group " + std::to_string(group) + " has no pages yet: call open_pool first");
  return *pools_[static_cast<size_t>(group)];
}

}  // namespace cacheir
