// A step allocates nothing once the largest one has run: every call for memory is counted while steps of all kinds run.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "small_decoder.h"

// The C library's own functions, which those below stand before; operator new ends in malloc.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
std::atomic<bool> counting{false};
std::atomic<int> asked{0};
void count() {
  if (counting.load(std::memory_order_relaxed)) asked.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* malloc(size_t bytes) { return count(), __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return count(), __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) { return count(), __libc_realloc(old, bytes); }
void* memalign(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return count(), __libc_memalign(alignment, bytes); }
int posix_memalign(void** to, size_t alignment, size_t bytes) {
  *to = (count(), __libc_memalign(alignment, bytes));
  return *to ? 0 : ENOMEM;
}
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  count();
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}

using namespace check;

namespace {

constexpr int kMostRows = 8, kMostTokens = 64;

// A step of so many rows and tokens, which want all there is in turn; a row has 8 pages of 16 tokens.
struct Asked {
  std::string mode;
  std::vector<GivenRow> rows;
};
Asked asked_step(std::mt19937& random, int rows, int tokens) {
  Asked step{tokens > rows ? "prefill" : "decode", {}};
  for (int b = 0; b < rows; ++b) {
    const int from = tokens * b / rows, n = tokens * (b + 1) / rows - from;
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
    const Sampling drawn{0.9f, 0.95f, 0.01f, static_cast<int32_t>(random() % 60), random()};
    constexpr Want wants[] = {Want::token, Want::logits, Want::token, Want::hidden, Want::nothing};
    step.rows.push_back({b, static_cast<int>(random() % 60), ids, 8 * b, wants[b % 5], b % 2 ? Sampling{} : drawn});
  }
  return step;
}

// What a caller keeps from step to step.
struct Results {
  StepResult step;
  std::vector<float> logits = std::vector<float>(kMostRows * kVocabulary), hidden = std::vector<float>(kMostRows * kHidden);
  std::vector<int32_t> ahead = std::vector<int32_t>(kMostRows * 64);
};

void run(Runner& r, const Asked& step, Results& results) {
  stage(r, step.mode, step.rows);
  results.step.logits = results.logits.data();
  results.step.hidden = results.hidden.data();
  r.run_main();
  r.run_heads(results.step);
}

void check_steps(std::mt19937& random, int threads, bool precise, KvFormat kv, Screening screening) {
  Model model = build(random(), threads, precise, kv, false, screening);
  Runner& r = *model.runner;
  Results results;
  std::vector<Asked> steps{asked_step(random, kMostRows, kMostTokens), asked_step(random, kMostRows, kMostRows)};
  for (int i = 0; i < 30; ++i) {
    const int rows = 1 + static_cast<int>(random() % kMostRows);
    steps.push_back(asked_step(random, rows, i % 2 ? rows : rows + static_cast<int>(random() % static_cast<unsigned>(kMostTokens - rows + 1))));
  }
  std::vector<GivenRow> ahead;
  for (int b = 0; b < kMostRows; ++b) ahead.push_back({b, 40 + b, {b}, 8 * b, Want::token, b % 2 ? Sampling{} : Sampling{0.9f, 0.95f, 0.01f, 40, random()}});
  const auto go_ahead = [&](int n) {
    stage(r, "decode", ahead);
    CHECK(r.run_ahead(n, 1e6, results.ahead.data()) == n, "not all of %d steps ahead", n);
  };
  for (size_t i = 0; i < 2; ++i) run(r, steps[i], results);
  go_ahead(2);
  asked = 0;
  counting = true;
  for (const Asked& step : steps) run(r, step, results);
  counting = false;
  CHECK(asked == 0, "%d threads, precise %d, kv %d: %d allocations in %d steps", threads, precise, static_cast<int>(kv), asked.load(), static_cast<int>(steps.size()));
  asked = 0;
  counting = true;
  go_ahead(32);
  counting = false;
  CHECK(asked == 0, "%d threads, precise %d, kv %d: %d allocations in 32 steps ahead", threads, precise, static_cast<int>(kv), asked.load());
}

}  // namespace

int main() {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  counting = true;
  std::vector<int> grown(1);
  for (int i = 0; i < 100; ++i) grown.push_back(i);
  counting = false;
  CHECK(asked >= 7, "the count misses vectors that grow: %d", asked.load());
  for (int threads : {1, 2, 3})
    for (bool precise : {false, true})
      for (Screening screening : {Screening::off, Screening::always}) check_steps(random, threads, precise, threads == 2 ? KvFormat::int8 : KvFormat::bf16, screening);
  return check::result("allocation");
}
