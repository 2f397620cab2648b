// The pool: barriers order writes, pieces cover everything once, workers sleep and wake, more threads than CPUs.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "core/step_thread.h"
#include "core/thread_pool.h"

using namespace cacheir;

namespace {

struct Shared {
  ThreadPool* pool;
  std::vector<int> counts;    // written by whoever has the piece
  std::vector<int> plain;     // each worker writes its own, all read after the barrier
  std::atomic<int> wrong{0};
};

void rounds(void* context, int worker) {
  Shared& s = *static_cast<Shared*>(context);
  const int n = s.pool->threads();
  for (int round = 1; round <= 200; ++round) {
    s.plain[static_cast<size_t>(worker)] = round;
    s.pool->barrier();
    for (int other = 0; other < n; ++other) s.wrong += s.plain[static_cast<size_t>(other)] != round;
    while (true) {
      const auto [first, count] = s.pool->next_piece(static_cast<int>(s.counts.size()), 7);
      if (count == 0) break;
      for (int i = first; i < first + count; ++i) ++s.counts[static_cast<size_t>(i)];
    }
    s.pool->barrier();
  }
}

// Shares of all sizes, empty ones too, by some workers more slowly than by others; over 256 times, since numbers wrap.
void shares(void* context, int worker) {
  Shared& s = *static_cast<Shared*>(context);
  const int n = s.pool->threads(), all = static_cast<int>(s.counts.size());
  for (int round = 0; round < 600; ++round) {
    const int total = round % 3 == 0 ? all : round % 5, step = 1 + round % 4;
    s.pool->begin_share(worker);
    if (round % 97 == worker) std::this_thread::yield();
    while (true) {
      const auto [first, count] = s.pool->next_of_share(worker, total, step, 3 * step);
      if (count == 0) break;
      for (int i = first; i < first + count; ++i) ++s.counts[static_cast<size_t>(i)];
    }
    if (s.pool->share_begin(n, total, step) != total || s.pool->share_begin(0, total, step) != 0) ++s.wrong;
    s.pool->barrier();
  }
}

// Work on a step thread is done once and in order, what it throws comes out once, and whoever goes waits for it.
void one_step_at_a_time() {
  std::vector<int> done;
  {
    StepThread thread;
    thread.wait();  // nothing was begun: there is nothing to wait for
    for (int i = 0; i < 300; ++i) {
      thread.start([&done, i] { done.push_back(i); });
      if (i % 3 == 0) thread.wait();
      if (i % 3 == 1) thread.settle();
    }
    thread.start([] { throw std::runtime_error("thrown"); });
    thread.settle();
    CHECK(!thread.busy(), "busy after settle()");
    int caught = 0;
    for (int i = 0; i < 2; ++i) {
      try {
        thread.wait();
      } catch (const std::runtime_error&) {
        ++caught;
      }
    }
    CHECK(caught == 1, "an error came out %d times", caught);
    thread.start([&done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done.push_back(300);
    });
  }
  std::vector<int> wanted(301);
  for (int i = 0; i < 301; ++i) wanted[static_cast<size_t>(i)] = i;
  CHECK(done == wanted, "%d pieces of work were done, not 301 in order", static_cast<int>(done.size()));
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, threads == 2);
    Shared shared{&pool, std::vector<int>(101, 0), std::vector<int>(static_cast<size_t>(threads), 0), {}};
    for (int run = 1; run <= 3; ++run) {
      pool.run(rounds, &shared);
      for (int count : shared.counts) CHECK(count == 200 * run, "%d threads: a piece was done %d times, not %d", threads, count, 200 * run);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // long enough for workers to fall asleep
    }
    std::vector<int> wanted(shared.counts.size(), 0);
    for (int round = 0; round < 600; ++round)
      for (int i = 0; i < (round % 3 == 0 ? static_cast<int>(wanted.size()) : round % 5); ++i) ++wanted[static_cast<size_t>(i)];
    std::fill(shared.counts.begin(), shared.counts.end(), 0);
    pool.run(shares, &shared);
    CHECK(shared.counts == wanted, "%d threads: a part of a share was left out or done twice", threads);
    CHECK(shared.wrong == 0, "%d threads: a write was not seen after the barrier", threads);
  }
  one_step_at_a_time();
  CHECK(default_threads() >= 1, "no thread");
  return check::result("threads");
}
