// Workers that run one function together: the caller is worker 0, waiting is a short spin and then a futex.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace cacheir {

// CACHEIR_THREADS, else what the affinity mask and the cgroup's CPU limit allow. Throws std::runtime_error where
// CACHEIR_THREADS is no positive number.
int default_threads();

class ThreadPool {
 public:
  // `pin` binds each worker, and the caller while it is inside run(), to a CPU of its own.
  ThreadPool(int threads, bool pin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Runs work(context, worker) on every worker and returns when all are done. One caller at a time.
  void run(void (*work)(void*, int), void* context);

  // For code inside run(): waits until all workers are here.
  void barrier();

  // For code inside run(): the next piece of shared work [first, first + count) of a phase, count 0 when none is left.
  // Every worker calls it until then with equal `total` and `grain`; a barrier must follow before the next phase.
  struct Piece {
    int first, count;
  };
  Piece next_piece(int total, int grain);

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  void loop(int worker);
  void wait_while(Word& word, uint32_t value, Word& sleepers);
  static void wake(Word& word, Word& sleepers);
  void bind_to_cpu(int worker);

  int threads_;
  bool pin_;
  uint32_t spin_ticks_;
  std::vector<int> cpus_;
  Word start_, start_sleepers_, arrived_, phase_, phase_sleepers_, piece_[2];
  std::atomic<bool> stop_{false};
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace cacheir
