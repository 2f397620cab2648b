// A head whose largest logit is found from fewer bytes: docs/native.md, "The screened head".
//
// Beside the head's panels lies a copy of five bits a weight, the screen, and for each row an upper bound of the norm of
// what the copy is off by. With x the activations, a row's exact logit is at most its screened one plus that norm times
// the norm of x (Cauchy and Schwarz), plus what rounding can add. Rows that stay below a logit that is known exactly cannot win;
// panels with any other row are multiplied by the kernel that the whole head takes, so the winner has the same bits.
#pragma once
#include <cstdint>
#include <vector>

#include "cacheir_native/kernel_table.h"
#include "core/activation_buffer.h"
#include "core/huge_memory.h"
#include "core/thread_pool.h"

namespace cacheir {

// `always`: from the first step on, in heads of any size, and never given up: for tests.
enum class Screening : int32_t { off, automatic, always };

constexpr int kMostScreenedRows = 4;  // head rows of one call

// Whether a screen can be made of a head, and whether it saves enough bytes for another barrier.
bool can_be_screened(const Matrix& head);
bool is_worth_screening(const Matrix& head);

// What has happened so far.
struct ScreenCounts {
  int64_t steps = 0;      // found by the screen
  int64_t too_many = 0;   // too many rows were left, so that the whole head ran besides
  int64_t panels = 0;     // panels of the head that were multiplied in all those, the whole ones not counted
  int64_t saved_bytes = 0;  // what whole heads would have read less what was read; below 0 where it cost more
  bool ready = false;     // the screen has been made
  bool given_up = false;  // it cost more than it saved, or a weight is not finite
};

class ScreenedHead {
 public:
  // Memory is taken at once and touched when the screen is made.
  ScreenedHead(int64_t weight, const Matrix& head, Act kind, bool always, int workers, HugeArena& workspace);

  int64_t weight() const { return weight_; }
  size_t bytes() const { return memory_.size(); }
  const ScreenCounts& counts() const { return counts_; }

  // Before a head runs on `rows` rows, by the thread that owns the pool: whether the screen takes part. It is made here.
  bool begin(ThreadPool& pool, const KernelTable& table, int rows);
  // After it: counts, and gives up where the screen costs more than it saves.
  void end();

  // For workers, all of them, between begin and end: in the order that screened_argmax (execute_screened.cpp) has.
  // One row's part in a call.
  struct Row {
    double norm, reach, off;  // of x; of all numbers that are multiplied; of x less what the screen is given for it
    float floor, error_factor;
  };
  // The best screened logit of a stretch of rows.
  struct Top {
    float value;
    int first, count;
  };
  struct alignas(64) Worker {
    ActivationBuffer buffer;
    Activations x;                  // what the screen is multiplied by
    float* values = nullptr;        // [2 * kMostScreenedRows][columns]
    float* scratch = nullptr;
    int32_t* panels = nullptr;      // those that are left
    Row rows[kMostScreenedRows];
    Top top[kMostScreenedRows];
    int left = 0;                   // how many panels are left, -1 where too many
    bool took_part = false;
  };
  Worker& worker(int number) { return workers_[static_cast<size_t>(number)]; }
  const std::vector<Worker>& workers() const { return workers_; }

  // Packs x for the screen and works out its norms. False where they are too large or not finite: the whole head runs.
  bool measure(const KernelTable& table, const Activations& x, Worker& mine) const;
  // A row's floor from a logit that is exact.
  void set_floor(Row& row, float logit) const;

  const Matrix& screen() const { return screen_; }
  const float* errors() const { return errors_; }
  float* logits(int row) const { return logits_ + static_cast<size_t>(row) * stride(); }
  size_t stride() const { return static_cast<size_t>(screen_.panels) * kPanelRows; }
  int most_panels() const { return most_panels_; }  // left for one worker

 private:
  friend void make_part(void* context, int worker);
  void make(ThreadPool& pool, const KernelTable& table);
  void give_up();

  int64_t weight_;
  Matrix head_, screen_;
  Act kind_;
  bool always_;
  HugeMemory memory_;
  float* errors_ = nullptr;  // [rows, rounded up to panels]: upper bounds of norms
  float* norms_ = nullptr;   // [workers]: the largest norm of a row that each has seen
  float* logits_ = nullptr;  // [rows of the call, and as many again where x is given in two parts][stride()]
  double largest_norm_ = 0;
  int most_panels_ = 0, waited_ = 0;
  double saved_ = 0;  // bytes not read, with an upper limit
  std::vector<Worker> workers_;
  ScreenCounts counts_;
};

}  // namespace cacheir
