// Runs programs: owns the arena, packed weights, KV pools, slots and threads. See program.h for what a program is.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cacheir_native/kernel_table.h"
#include "cacheir_native/program.h"
#include "cacheir_native/step.h"
#include "core/activation_buffer.h"
#include "core/huge_memory.h"
#include "core/kv_pool.h"
#include "core/pack_weights.h"
#include "core/sampling.h"
#include "core/screened_head.h"
#include "core/step_thread.h"
#include "core/thread_pool.h"

namespace cacheir {

struct RunnerOptions {
  int max_rows = 8, max_tokens = 512, max_seq = 8192, vocabulary = 0, threads = 0;
  bool pin = false, precise = false;
  Screening screening = Screening::automatic;
};

// Matrices under each other (a stack), or gate and up (a pair); all with equal columns.
struct GivenWeight {
  std::vector<StoredMatrix> matrices;
  bool pair;
};

// The same, packed.
struct Weight {
  std::vector<Matrix> parts;
  std::vector<Act> kinds;
  std::vector<int> first_column;  // of each part in the stack's result
  int rows = 0, columns = 0;
  bool pair = false;
};

struct Region {
  int64_t place = kNone;
  int width = 0, rows = 0;
};

struct Section {
  std::vector<Instruction> code;
  Region input, output, logits;
};

// Names of head sections behind "MODE/", in the order in which they run; hidden rows need no section.
inline constexpr std::array<const char*, 3> kHeads = {"head.greedy", "head.sampled", "head.logits"};
inline constexpr int kHiddenHead = 3;

// A main section with its heads, looked up once.
struct Mode {
  std::string name;
  const Section* main = nullptr;
  std::array<std::string, kHeads.size()> head_names;
  std::array<const Section*, kHeads.size()> heads{};  // null where the program has none
  bool decode = false;
};

struct Slot {
  int32_t last_token = 0;
  Sampling sampling;
  std::vector<int32_t> stop_ids;
};

// Where the results of a step go; buffers for logits and hidden rows are the caller's.
struct StepResult {
  std::vector<int32_t> tokens;  // [B]
  std::vector<uint8_t> failed;  // [B]
  float* logits = nullptr;      // [rows that want logits or logprobs, in order][V]
  float* hidden = nullptr;      // [rows that want hidden][H]
};

struct Timing {
  std::string section;
  int instruction;
  double seconds;
};

// All members throw std::invalid_argument with a sentence where the caller is wrong. One thread calls.
class Runner {
 public:
  explicit Runner(const RunnerOptions& options);

  // Building.
  int64_t reserve(size_t bytes);  // a place of `bytes` in the arena
  int64_t add_weight(const std::vector<StoredMatrix>& matrices, bool pair);
  std::vector<int64_t> add_weights(const std::vector<GivenWeight>& given);  // all packed at once
  int64_t add_vector(const float* values, size_t count);
  void open_pool(int group, KvFormat format, int layers, int heads, int head_dim, int pages, int page_tokens);
  int emit(const std::string& section, const Instruction& instruction);
  void set_output(const std::string& section, const Region& region) { sections_[section].output = region; }
  void set_input(const std::string& section, const Region& region) { sections_[section].input = region; }
  void set_logits(const std::string& section, const Region& region) { sections_[section].logits = region; }
  void finish();

  // Stepping. The step is filled by the caller (clear_step() first) and checked by begin().
  Step& step() { return step_; }
  void clear_step();
  void begin(const std::string& mode);
  void run(const std::string& section, int first, int last);
  void run_main();
  void run_heads(StepResult& result);
  // Up to n decode steps of the staged rows, tokens [steps][B]; -1 after a row's stop id, -2 where it failed.
  int run_ahead(int n, double max_seconds, int32_t* tokens);
  // For a caller that has something else to do while run_main and run_heads run: nothing else may be called until then.
  StepThread& step_thread() { return step_thread_; }
  std::vector<Timing>* timings = nullptr;  // filled by run_main and run_heads where not null

  const RunnerOptions& options() const { return options_; }
  const KernelTable& table() const { return table_; }
  int threads() const { return pool_.threads(); }
  Slot& slot(int number);
  KvPool& pool(int group);
  size_t groups() const { return pools_.size(); }
  uint8_t* arena() const { return arena_.data(); }
  size_t arena_bytes() const { return arena_bytes_; }
  size_t weight_bytes() const;  // screens included
  size_t workspace_bytes() const { return workspace_.used(); }
  const std::vector<std::unique_ptr<ScreenedHead>>& screened_heads() const { return screened_heads_; }
  int hidden_width() const { return mode_ ? mode_->main->output.width : 0; }

 private:
  friend struct Executor;
  friend struct Checker;
  Weight lay_out(const std::vector<StoredMatrix>& matrices, bool pair);
  void stage_next_tokens();
  void run_code(const std::string& name, const Section& section, size_t first, size_t last, int rows);
  void find_modes();
  void join_tiles();
  void screen_heads();
  ScreenedHead* begin_screening(const Section& head, int rows);

  RunnerOptions options_;
  const KernelTable& table_;
  ThreadPool pool_;
  HugeArena weights_memory_, workspace_;
  HugeMemory arena_;
  size_t arena_bytes_ = 0;
  bool finished_ = false;
  std::vector<Weight> weights_;
  std::vector<std::pair<const float*, size_t>> vectors_;
  std::vector<std::unique_ptr<KvPool>> pools_;
  std::vector<int> sinks_;               // of each KV group, the most of any layer
  std::vector<int> windows_;             // of each KV group, 0 where a layer attends to everything, -1 where none attends
  std::unordered_map<std::string, Section> sections_;
  std::unordered_map<std::string, Mode> modes_;
  std::unordered_map<int, Slot> slots_;

  // The step being run.
  Step step_;
  const Mode* mode_ = nullptr;
  std::vector<int> head_kind_;           // of each row, into kHeads, or kHiddenHead; -1 for none
  std::vector<int32_t> picked_;          // head rows of the running head
  std::vector<int32_t> head_tokens_;     // what head_argmax and sample give, for each picked row
  StepResult ahead_;                     // of run_ahead's last step
  std::vector<uint8_t> ended_;           // of each row, whether run_ahead met a stop id of it

  // Workspace, sized by finish().
  ActivationBuffer shared_;
  std::vector<ActivationBuffer> own_;    // of each worker, a few rows
  std::vector<float*> scratch_;          // of each worker
  float* qkv_ = nullptr;                 // [T][q + k + v]
  float* partials_ = nullptr;            // states of attention's chunks
  std::vector<Best> best_;               // of each worker
  std::vector<Sampler> samplers_;        // of each worker
  std::vector<std::unique_ptr<ScreenedHead>> screened_heads_;
  ScreenedHead* screening_ = nullptr;    // that of the running head, where it takes part

  StepThread step_thread_;               // last, so that it goes first: it may be using all of the above
};

}  // namespace cacheir
