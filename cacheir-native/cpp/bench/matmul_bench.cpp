// Speed of the weight products of SmolLM2-135M's shape: decode (one row, head included) and prefill (512 rows), and what
// the same threads read from memory beside it.
//   matmul_bench FORMAT [THREADS [pin [ROWS...]]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "core/activation_buffer.h"
#include "core/dispatch.h"
#include "core/huge_memory.h"
#include "core/pack_weights.h"
#include "core/stored_blocks.h"
#include "core/thread_pool.h"

using namespace cacheir;

namespace {

// CPU seconds of this thread: what a busy machine leaves comparable.
double cpu() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Job {
  const KernelTable* table;
  ThreadPool* pool;
  std::vector<Matrix> matrices;
  std::vector<Activations> activations;
  float* out;
};

void work(void* context, int worker) {
  Job& job = *static_cast<Job*>(context);
  const int n = job.pool->threads();
  for (size_t i = 0; i < job.matrices.size(); ++i) {
    const Matrix& m = job.matrices[i];
    const Destination to{job.out, static_cast<size_t>(m.panels) * 16, nullptr, nullptr, 0, nullptr};
    job.table->matmul(&m, &job.activations[i], m.panels * worker / n, m.panels * (worker + 1) / n, &to);
    job.pool->barrier();
  }
}

struct Reading {
  ThreadPool* pool;
  const uint8_t* data;
  size_t bytes;
  std::vector<uint64_t> found;
};

void read(void* context, int worker) {
  Reading& job = *static_cast<Reading*>(context);
  const size_t part = job.bytes / static_cast<size_t>(job.pool->threads()) / 8;
  const uint64_t* words = reinterpret_cast<const uint64_t*>(job.data) + part * static_cast<size_t>(worker);
  uint64_t sums[32] = {};
  for (size_t i = 0; i + 32 <= part; i += 32)
    for (size_t j = 0; j < 32; ++j) sums[j] |= words[i + j];
  for (uint64_t sum : sums) job.found[static_cast<size_t>(worker) * 8] |= sum;
}

// Bytes a second that the pool reads from memory.
double bandwidth(ThreadPool& pool, const HugeMemory& memory) {
  Reading job{&pool, memory.data(), memory.size(), std::vector<uint64_t>(static_cast<size_t>(pool.threads()) * 8)};
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now();
    pool.run(read, &job);
    least = std::min(least, now() - start);
  }
  return static_cast<double>(memory.size()) / least;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "q8_0";
  const int threads = count > 2 ? std::atoi(arguments[2]) : 0;
  const auto stored = stored_format(name);
  if (!stored) {
    std::fprintf(stderr, "%s is no stored format\n", name.c_str());
    return 2;
  }
  const KernelTable& table = chosen_table();
  ThreadPool pool(threads, count > 3 && std::string(arguments[3]) == "pin");
  const bool super = block_columns(*stored) == 256;
  const int hidden = super ? 2048 : 576, feed = super ? 8192 : 1536, layers = super ? 4 : 30, qkv = super ? 3072 : 960, vocabulary = super ? 128256 / 4 : 49152;
  const Panel panel = panel_of(*stored, false, table.bf16_dot);
  const Act kind = activations_of(panel, false, table.bf16_dot);
  HugeArena arena;
  HugeMemory probed(size_t{256} << 20);
  std::fill_n(probed.data(), probed.size(), uint8_t{1});
  std::vector<int> row_counts;
  for (int i = 4; i < count; ++i) row_counts.push_back(std::atoi(arguments[i]));
  if (row_counts.empty()) row_counts = {1, 4, 16, 512};
  std::vector<std::pair<int, int>> shapes;
  for (int l = 0; l < layers; ++l) shapes.insert(shapes.end(), {{qkv, hidden}, {hidden, hidden}, {2 * feed, hidden}, {hidden, feed}});
  shapes.push_back({vocabulary, hidden});
  const size_t largest = static_cast<size_t>(vocabulary) * static_cast<size_t>(hidden);
  std::vector<uint8_t> source(largest / static_cast<size_t>(block_columns(*stored)) * block_bytes(*stored), 0x2c);
  double bytes = 0, packed_seconds = 0;
  std::vector<Matrix> matrices;
  for (auto [rows, columns] : shapes) {
    const size_t stride = panel_bytes(panel, columns);
    Matrix m{panel, arena.allocate(stride * static_cast<size_t>(rows / 16)), stride, rows, columns, rows / 16};
    const double start = now();
    pack_panels({*stored, source.data(), rows, columns}, m, 0, m.panels);
    packed_seconds += now() - start;
    bytes += static_cast<double>(stride) * m.panels;
    matrices.push_back(m);
  }
  std::printf("%s on %s, %d threads; %.1f MB packed in %.2f s (1 thread)\n", name.c_str(), table.name, pool.threads(), bytes / 1e6, packed_seconds);
  for (int rows : row_counts) {
    std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(feed), 0.5f), scratch(static_cast<size_t>(feed) + 64);
    HugeMemory out(static_cast<size_t>(rows) * static_cast<size_t>(std::max(vocabulary, 2 * feed)) * 4);
    Job job{&table, &pool, matrices, {}, reinterpret_cast<float*>(out.data())};
    if (rows > 16) job.matrices.pop_back();  // a prompt needs the head for its last token alone
    std::vector<ActivationBuffer> buffers(2);
    Activations views[2];
    for (int i = 0; i < 2; ++i) {
      const int columns = i ? feed : hidden;
      buffers[static_cast<size_t>(i)].reserve(arena, static_cast<size_t>(rows), static_cast<size_t>(columns));
      views[i] = buffers[static_cast<size_t>(i)].view(kind, rows, columns);
      const PackRows pack{x.data(), static_cast<size_t>(columns), nullptr, 0, scratch.data(), &views[i], 0, rows};
      table.pack_rows(&pack);
    }
    double macs = 0;
    for (const Matrix& m : job.matrices) {
      job.activations.push_back(views[m.columns == feed]);
      macs += static_cast<double>(m.rows) * m.columns * rows;
    }
    // Bandwidth comes and goes by the minute: each few runs have their own reading of it.
    std::vector<double> seconds, cpu_seconds, shares;
    for (int part = 0; part < 7; ++part) {
      const double probe = bandwidth(pool, probed), part_start = now();
      constexpr int runs = 8;
      for (int i = 0; i < (rows > 16 ? 1 : runs); ++i) {
        const double start = now(), cpu_start = cpu();
        pool.run(work, &job);
        cpu_seconds.push_back(cpu() - cpu_start);
        seconds.push_back(now() - start);
      }
      shares.push_back((rows > 16 ? 1 : runs) * bytes / (now() - part_start) / probe);
    }
    std::sort(shares.begin(), shares.end());
    std::sort(seconds.begin(), seconds.end());
    std::sort(cpu_seconds.begin(), cpu_seconds.end());
    const double median = seconds[seconds.size() / 2];
    std::printf("  rows %4d: median %8.3f ms  %7.1f tok/s  %6.1f GB/s (%.0f %% of the probe)  %7.1f GOP/s  (best %.1f tok/s; %.1f by the caller's CPU time)\n", rows, median * 1e3, rows / median, bytes / median / 1e9, 100 * shares[shares.size() / 2], 2 * macs / median / 1e9, rows / seconds[0], rows / cpu_seconds[cpu_seconds.size() / 2]);
  }
}
