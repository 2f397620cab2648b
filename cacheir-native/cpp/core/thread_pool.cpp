// Spin for about 30 microseconds, then sleep: without the second part a busy neighbour makes every barrier cost a time
// slice of the scheduler (studies of other engines: 115 tokens a second become 2).
#include "core/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace cacheir {
namespace {

constexpr double kSpinSeconds = 30e-6;

thread_local int current_worker = 0;  // of the pool that the thread is working for

inline void pause() { __builtin_ia32_pause(); }
inline uint64_t ticks() { return __builtin_ia32_rdtsc(); }

void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

// CPUs that the cgroup's quota pays for, 0 for no limit.
double cgroup_limit() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::strtod(quota.c_str(), nullptr) / period;
  std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota_us = 0;
  if (q >> quota_us && p >> period && quota_us > 0 && period > 0) return quota_us / period;
  return 0;
}

uint32_t measure_spin_ticks() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const uint64_t first = ticks();
  while (Clock::now() - start < std::chrono::microseconds(200)) pause();
  const uint64_t passed = ticks() - first;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();  // more, where we were preempted
  return static_cast<uint32_t>(std::min(static_cast<double>(passed) / seconds * kSpinSeconds, 1e6));
}

}  // namespace

int default_threads() {
  if (const char* asked = std::getenv("CACHEIR_THREADS"); asked && *asked) {
    char* end = nullptr;
    const long count = std::strtol(asked, &end, 10);
    if (*end || count < 1 || count > 1024)
      throw std::runtime_error(std::string("CACHEIR_THREADS must be a number from 1 to 1024, not '") + asked + "'");
    return static_cast<int>(count);
  }
  const int cpus = static_cast<int>(allowed_cpus().size());
  const double limit = cgroup_limit();
  return limit > 0 ? std::clamp(static_cast<int>(limit), 1, cpus) : cpus;
}

ThreadPool::ThreadPool(int threads, bool pin)
    : threads_(threads > 0 ? threads : default_threads()), pin_(pin), spin_ticks_(measure_spin_ticks()), cpus_(allowed_cpus()),
      ranges_(std::make_unique<Range[]>(static_cast<size_t>(threads_))), seats_(std::make_unique<Seat[]>(static_cast<size_t>(threads_))) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { loop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  start_.value.fetch_add(1);
  futex_wake_all(start_.value);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::bind_to_cpu(int worker) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[static_cast<size_t>(worker) % cpus_.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void ThreadPool::run(void (*work)(void*, int), void* context) {
  if (threads_ == 1) {
    work(context, 0);
    return barrier();
  }
  current_worker = 0;
  note_cpu();
  work_ = work;
  context_ = context;
  start_.value.fetch_add(1);  // sequentially consistent, like the sleepers' count: one of the two sides sees the other
  wake(start_, start_sleepers_);
  cpu_set_t before;
  const bool bound = pin_ && pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
  if (bound) bind_to_cpu(0);
  work(context, 0);
  barrier();
  if (bound) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
}

void ThreadPool::loop(int worker) {
  current_worker = worker;
  if (pin_) bind_to_cpu(worker);
  note_cpu();
  uint32_t seen = 0;
  while (true) {
    wait_while(start_, seen, start_sleepers_);
    ++seen;
    if (stop_.load()) return;
    note_cpu();
    work_(context_, worker);
    barrier();
  }
}

void ThreadPool::barrier() {
  if (threads_ == 1) {
    piece_[0].value.store(0, std::memory_order_relaxed);
    return;
  }
  note_cpu();
  const uint32_t phase = phase_.value.load(std::memory_order_relaxed);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
    arrived_.value.store(0, std::memory_order_relaxed);
    piece_[phase & 1].value.store(0, std::memory_order_relaxed);
    phase_.value.store(phase + 1);
    wake(phase_, phase_sleepers_);
    return;
  }
  wait_while(phase_, phase, phase_sleepers_);
}

ThreadPool::Piece ThreadPool::next_piece(int total, int grain) {
  const uint32_t phase = threads_ == 1 ? 0 : phase_.value.load(std::memory_order_relaxed);
  const int first = static_cast<int>(piece_[phase & 1].value.fetch_add(static_cast<uint32_t>(grain), std::memory_order_relaxed));
  return {first, std::max(0, std::min(grain, total - first))};
}

ThreadPool::Piece ThreadPool::next_of_share(int worker, int total, int step, int grain) {
  constexpr uint64_t mask = (uint64_t{1} << 28) - 1;
  const uint64_t tag = uint64_t{ranges_[static_cast<size_t>(worker)].shares & 255} << 56;
  for (int i = 0; i < threads_; ++i) {
    const int owner = (worker + i) % threads_;
    std::atomic<uint64_t>& word = ranges_[static_cast<size_t>(owner)].value;
    uint64_t held = word.load(std::memory_order_relaxed);
    while (true) {
      // A worker that has not come yet has still its share of the last time; empty shares are numbered too, lest one
      // that is 256 times old be taken for this one.
      const bool stale = (held ^ tag) >> 56;
      int first = stale ? share_begin(owner, total, step) : static_cast<int>(held >> 28 & mask);
      int last = stale ? share_begin(owner + 1, total, step) : static_cast<int>(held & mask);
      if (first >= last && !stale) break;
      const int third = (last - first) / (3 * step) * step;
      const int count = std::max(0, std::min({grain, std::max(step, third), last - first}));
      Piece piece{first, count};
      if (i == 0) first += count;
      else piece.first = last -= count;
      const uint64_t left = tag | static_cast<uint64_t>(first) << 28 | static_cast<uint64_t>(last);
      if (!word.compare_exchange_weak(held, left, std::memory_order_relaxed)) continue;
      if (count > 0) return piece;
      break;
    }
  }
  return {total, 0};
}

void ThreadPool::note_cpu() { seats_[static_cast<size_t>(current_worker)].cpu.store(sched_getcpu(), std::memory_order_relaxed); }

void ThreadPool::wait_while(Word& word, uint32_t value, Word& sleepers) {
  if (word.value.load(std::memory_order_acquire) != value) return;
  // Beside busy neighbours the scheduler may put two workers on one CPU. Who spins there waits for itself: every barrier
  // would cost the whole spin, more than the work between two of them. So each turn of the loop looks at one other worker.
  const int here = seats_[static_cast<size_t>(current_worker)].cpu.load(std::memory_order_relaxed);
  int other = current_worker;
  const uint64_t begin = ticks();
  do {
    for (int i = 0; i < 16; ++i) {
      if (word.value.load(std::memory_order_acquire) != value) return;
      pause();
    }
    other = other + 1 == threads_ ? 0 : other + 1;
    if (other != current_worker && seats_[static_cast<size_t>(other)].cpu.load(std::memory_order_relaxed) == here) break;
  } while (ticks() - begin < spin_ticks_);
  sleepers.value.fetch_add(1);
  while (word.value.load() == value) futex_wait(word.value, value);
  sleepers.value.fetch_sub(1);
}

void ThreadPool::wake(Word& word, Word& sleepers) {
  if (sleepers.value.load() != 0) futex_wake_all(word.value);
}

}  // namespace cacheir
