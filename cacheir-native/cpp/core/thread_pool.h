// Workers that run one function together: the caller is worker 0, waiting is a short spin and then a futex.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
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
  // Every worker calls it until then with equal `total` and `grain`; a barrier, or the end of run(), must follow before the next phase.
  struct Piece {
    int first, count;
  };
  Piece next_piece(int total, int grain);

  // The same, of worker's own even share of [0, total) first and from its front on, so that it walks through memory in
  // order, then from the back of what others have left: a worker whose CPU is taken away holds nobody up for long.
  // A piece is a third of what is left of a share, at most `grain`: large ones first, small ones so that all end together.
  // Shares are multiples of `step`, total is below 2^28; every worker calls begin_share first and takes all it gets.
  void begin_share(int worker) { ++ranges_[static_cast<size_t>(worker)].shares; }
  Piece next_of_share(int worker, int total, int step, int grain);

  // Where that share begins.
  int share_begin(int worker, int total, int step) const {
    const int units = (total + step - 1) / step;
    return std::min(total, static_cast<int>(int64_t{units} * worker / threads_) * step);
  }

 private:
  struct alignas(64) Range {
    std::atomic<uint64_t> value{0};  // number (8 bits), first and last (28 bits each) of what is left
    uint32_t shares = 0;             // how many the owner has begun: the number of this one
  };
  struct alignas(64) Seat {
    std::atomic<int> cpu{-1};  // where the worker was when it last came to a barrier or to its work
  };
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};
  };
  void loop(int worker);
  void wait_while(Word& word, uint32_t value, Word& sleepers);
  void note_cpu();
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
  std::unique_ptr<Range[]> ranges_;
  std::unique_ptr<Seat[]> seats_;
  std::vector<std::thread> workers_;
};

}  // namespace cacheir
