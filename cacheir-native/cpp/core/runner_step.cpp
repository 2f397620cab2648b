// A step: its data is checked, main runs, then the heads that its rows need.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cacheir_native/runner.h"
#include "core/executor.h"

namespace cacheir {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Walk {
  Runner* runner;
  const Section* section;
  size_t first, last;
  int rows;
  std::vector<Timing>* timings;
  const std::string* name;
};

void walk(void* context, int worker) {
  const Walk& w = *static_cast<const Walk*>(context);
  Executor executor{*w.runner, worker, w.rows, nullptr, nullptr};
  for (size_t i = w.first; i < w.last; ++i) {
    const bool timed = w.timings && worker == 0;
    const double start = timed ? now() : 0;
    executor.next = w.section->code.data() + i + 1;
    executor.end = w.section->code.data() + w.last;
    executor.run(w.section->code[i]);
    if (timed) w.timings->push_back({*w.name, static_cast<int>(i), now() - start});
  }
}

std::string text(int64_t number) { return std::to_string(number); }

}  // namespace

void Runner::clear_step() {
  mode_ = nullptr;  // a step that is half filled cannot be run
  for (auto* list : {&step_.tokens, &step_.positions, &step_.row_starts, &step_.head_rows, &step_.owners}) list->clear();
  step_.rows.clear();
  step_.masks.clear();
  if (step_.groups.size() < pools_.size()) step_.groups.resize(pools_.size());
  for (GroupInputs& group : step_.groups) {
    group.slots.clear();
    group.page_table.clear();
    group.lengths.clear();
    group.width = 0;
  }
}

void Runner::begin(const std::string& mode) {
  if (!finished_) throw std::invalid_argument("the program is not finished: call finish() first");
  mode_ = nullptr;  // a step that is refused leaves none that could be run
  const auto found = modes_.find(mode);
  if (found == modes_.end()) throw std::invalid_argument("the program has no section '" + mode + "'");
  const Mode& asked = found->second;
  const bool decode = asked.decode;
  if (step_.rows.empty()) throw std::invalid_argument("a step needs at least one row");
  if (step_.rows.size() > static_cast<size_t>(options_.max_rows))
    throw std::invalid_argument("a step takes at most " + text(options_.max_rows) + " rows, not " + text(static_cast<int64_t>(step_.rows.size())));
  if (step_.tokens.size() > static_cast<size_t>(options_.max_tokens))
    throw std::invalid_argument("a step takes at most " + text(options_.max_tokens) + " tokens, not " + text(static_cast<int64_t>(step_.tokens.size())));
  for (int32_t token : step_.tokens)
    if (token < 0 || token >= options_.vocabulary)
      throw std::invalid_argument("token " + text(token) + " is not in the vocabulary of " + text(options_.vocabulary));
  step_.row_starts.assign(1, 0);
  head_kind_.clear();
  for (size_t b = 0; b < step_.rows.size(); ++b) {
    const StepRow& row = step_.rows[b];
    if (row.tokens < 1 || (decode && row.tokens != 1)) throw std::invalid_argument("slot " + text(row.slot) + " feeds " + text(row.tokens) + " tokens");
    if (row.position < 0 || row.position > options_.max_seq - row.tokens)
      throw std::invalid_argument("slot " + text(row.slot) + " reaches position " + text(int64_t{row.position} + row.tokens - 1) + ", past " + text(options_.max_seq - 1));
    step_.row_starts.push_back(step_.row_starts.back() + row.tokens);
    for (int t = 0; t < row.tokens; ++t) step_.positions.push_back(row.position + t);
    for (size_t g = 0; g < pools_.size(); ++g) {
      const KvPool& kv = pool(static_cast<int>(g));
      GroupInputs& group = step_.groups[g];
      if (static_cast<size_t>(group.width) * step_.rows.size() != group.page_table.size()) throw std::invalid_argument("page tables are not [B, width]");
      const int32_t* table = group.page_table.data() + b * static_cast<size_t>(group.width);
      const int used = (row.position + row.tokens + kv.page_tokens() - 1) / kv.page_tokens();
      if (used > group.width) throw std::invalid_argument("slot " + text(row.slot) + " has too few pages for position " + text(row.position + row.tokens - 1));
      // Pages that have left the window and hold no sinks are not read: a table may hold anything for them. Where no instruction attends,
      // the host does, and looks at the table for itself.
      const int seen = std::max(windows_[g], 1);
      const int first = windows_[g] == 0 ? 0 : std::max(0, row.position - seen + 1) / kv.page_tokens();
      const int kept = windows_[g] > 0 ? std::min((sinks_[g] + kv.page_tokens() - 1) / kv.page_tokens(), used) : 0;
      for (int p = kept > 0 ? 0 : first; p < used; p = p + 1 == kept ? std::max(kept, first) : p + 1)
        if (table[p] < 0 || table[p] >= kv.pages())
          throw std::invalid_argument("slot " + text(row.slot) + " has no page " + text(table[p]) + " for positions from " + text(int64_t{p} * kv.page_tokens()) + " on; the pool has " + text(kv.pages()));
      for (int at = row.position; at < row.position + row.tokens; ++at) group.slots.push_back(table[at / kv.page_tokens()] * kv.page_tokens() + at % kv.page_tokens());
      group.lengths.push_back(row.position + row.tokens);
    }
    const bool greedy = !row.masked && !(row.sampling.temperature > 0);
    head_kind_.push_back(row.want == Want::nothing ? -1 : row.want == Want::hidden ? kHiddenHead : row.want == Want::token ? (greedy ? 0 : 1) : 2);
    if (head_kind_.back() >= 0 && head_kind_.back() < kHiddenHead) {
      const size_t head = static_cast<size_t>(head_kind_.back());
      if (!asked.heads[head]) throw std::invalid_argument("the program has no section '" + asked.head_names[head] + "'");
    }
  }
  const int most = decode ? options_.max_rows : options_.max_tokens;
  if (step_.head_rows.size() > static_cast<size_t>(most))
    throw std::invalid_argument("a " + mode + " step takes at most " + text(most) + " head rows, not " + text(static_cast<int64_t>(step_.head_rows.size())));
  for (int32_t row : step_.head_rows)
    if (row < 0 || row >= step_.row_starts.back()) throw std::invalid_argument("a head row lies outside the step");
  mode_ = &asked;
}

void Runner::run_code(const std::string& name, const Section& code, size_t first, size_t last, int rows) {
  Walk job{this, &code, first, last, rows, timings, &name};
  pool_.run(walk, &job);
}

void Runner::run(const std::string& name, int first, int last) {
  if (!mode_ || mode_->name != name) throw std::invalid_argument("section '" + name + "' is not that of the step: call begin() first");
  const Section& code = *mode_->main;
  if (first < 0 || last < first || static_cast<size_t>(last) > code.code.size()) throw std::invalid_argument("section '" + name + "' has no such instructions");
  run_code(name, code, static_cast<size_t>(first), static_cast<size_t>(last), static_cast<int>(step_.tokens.size()));
}

void Runner::run_main() {
  if (!mode_) throw std::invalid_argument("no step is staged: call begin() first");
  run_code(mode_->name, *mode_->main, 0, mode_->main->code.size(), static_cast<int>(step_.tokens.size()));
}

void Runner::run_heads(StepResult& result) {
  if (!mode_) throw std::invalid_argument("no step is staged: call begin() first");
  result.tokens.assign(step_.rows.size(), kNoToken);
  result.failed.assign(step_.rows.size(), 0);
  const Section& code = *mode_->main;
  if (step_.head_rows.empty()) return;
  if (code.output.place == kNone) throw std::invalid_argument("section '" + mode_->name + "' has no output: call set_output");
  const float* rows = reinterpret_cast<const float*>(arena_.data() + code.output.place);
  const size_t width = static_cast<size_t>(code.output.width);
  float* hidden = result.hidden;
  for (size_t h = 0; h < step_.owners.size(); ++h) {
    if (head_kind_[static_cast<size_t>(step_.owners[h])] != kHiddenHead || !hidden) continue;
    std::memcpy(hidden, rows + h * width, width * 4);
    hidden += width;
  }
  for (int kind = 0; kind < kHiddenHead; ++kind) {
    if (std::find(head_kind_.begin(), head_kind_.end(), kind) == head_kind_.end()) continue;
    const std::string& name = mode_->head_names[static_cast<size_t>(kind)];
    const Section& head = *mode_->heads[static_cast<size_t>(kind)];
    float* input = reinterpret_cast<float*>(arena_.data() + head.input.place);
    for (size_t h = 0; h < step_.owners.size();) {
      picked_.clear();
      for (; h < step_.owners.size() && picked_.size() < static_cast<size_t>(head.input.rows); ++h) {
        if (head_kind_[static_cast<size_t>(step_.owners[h])] != kind) continue;
        std::memcpy(input + picked_.size() * width, rows + h * width, width * 4);
        picked_.push_back(static_cast<int32_t>(h));
      }
      if (picked_.empty()) break;
      head_tokens_.assign(picked_.size(), kNoToken);  // where no instruction of the head gives any
      screening_ = kind == 0 ? begin_screening(head, static_cast<int>(picked_.size())) : nullptr;
      run_code(name, head, 0, head.code.size(), static_cast<int>(picked_.size()));
      if (screening_) std::exchange(screening_, nullptr)->end();
      const size_t vocabulary = static_cast<size_t>(head.logits.place == kNone ? 0 : head.logits.width);
      const float* logits = vocabulary ? reinterpret_cast<const float*>(arena_.data() + head.logits.place) : nullptr;
      for (size_t p = 0; p < picked_.size(); ++p) {
        const size_t row = static_cast<size_t>(step_.owners[static_cast<size_t>(picked_[p])]);
        if (kind < 2) {
          result.tokens[row] = head_tokens_[p];
          result.failed[row] = head_tokens_[p] < 0;
          if (head_tokens_[p] >= 0) slots_[step_.rows[row].slot].last_token = head_tokens_[p];
        } else if (logits && result.logits) {
          const float* from = logits + p * vocabulary;
          result.failed[row] |= !std::isfinite(table_.largest(from, vocabulary));
          std::memcpy(result.logits, from, vocabulary * 4);
          result.logits += vocabulary;
        }
      }
    }
  }
}

// The screen of the first head_argmax of a section, where there is one that takes part.
ScreenedHead* Runner::begin_screening(const Section& head, int rows) {
  for (const Instruction& i : head.code)
    for (const auto& screened : screened_heads_)
      if (i.opcode == Opcode::head_argmax && screened->weight() == i.weight) return screened->begin(pool_, table_, rows) ? screened.get() : nullptr;
  return nullptr;
}

// The next decode step of the same rows: each feeds its slot's last token one position further.
void Runner::stage_next_tokens() {
  for (size_t b = 0; b < step_.rows.size(); ++b) {
    StepRow& row = step_.rows[b];
    row.position += row.tokens;
    row.tokens = 1;
    row.draw += 1;
    step_.tokens[b] = slots_[row.slot].last_token;
    step_.positions[b] = row.position;
    for (size_t g = 0; g < pools_.size(); ++g) {
      const KvPool& kv = *pools_[g];
      GroupInputs& group = step_.groups[g];
      const int32_t page = group.page_table[b * static_cast<size_t>(group.width) + static_cast<size_t>(row.position / kv.page_tokens())];
      group.slots[b] = page * kv.page_tokens() + row.position % kv.page_tokens();
      group.lengths[b] = row.position + 1;
    }
  }
}

int Runner::run_ahead(int n, double max_seconds, int32_t* tokens) {
  if (!mode_ || !mode_->decode || n < 1) throw std::invalid_argument("run_ahead takes a staged decode step and at least one step to run");
  const size_t batch = step_.rows.size();
  for (size_t b = 0; b < batch; ++b) {
    const StepRow& row = step_.rows[b];
    if (row.want != Want::token || row.masked)
      throw std::invalid_argument("slot " + text(row.slot) + " cannot run ahead: what it wants needs the host");
    if (row.position + n > options_.max_seq) throw std::invalid_argument("slot " + text(row.slot) + " would run past position " + text(options_.max_seq - 1));
    for (size_t g = 0; g < pools_.size(); ++g) {
      const int32_t* table = step_.groups[g].page_table.data() + b * static_cast<size_t>(step_.groups[g].width);
      const int used = (row.position + n + pools_[g]->page_tokens() - 1) / pools_[g]->page_tokens();
      const int now_at = row.position / pools_[g]->page_tokens();  // begin() checked those before
      if (used > step_.groups[g].width || std::any_of(table + now_at, table + used, [&](int32_t p) { return p < 0 || p >= pools_[g]->pages(); }))
        throw std::invalid_argument("slot " + text(row.slot) + " has too few pages to run " + text(n) + " steps ahead");
    }
  }
  const double end = now() + max_seconds;
  StepResult& result = ahead_;
  std::vector<uint8_t>& ended = ended_;
  ended.assign(batch, 0);
  for (int done = 0;;) {
    run_main();
    run_heads(result);
    bool failed = false, live = false;
    for (size_t b = 0; b < batch; ++b) {
      int32_t token = result.tokens[b];
      failed |= result.failed[b] && !ended[b];
      tokens[static_cast<size_t>(done) * batch + b] = ended[b] ? -1 : result.failed[b] ? -2 : token;
      const std::vector<int32_t>& stops = slots_[step_.rows[b].slot].stop_ids;
      ended[b] |= std::find(stops.begin(), stops.end(), token) != stops.end();
      live |= !ended[b];
    }
    ++done;
    if (done == n || failed || !live || now() > end) return done;
    stage_next_tokens();
  }
}

}  // namespace cacheir
