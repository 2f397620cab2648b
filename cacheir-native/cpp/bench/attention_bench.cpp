// Speed of one layer's attention of SmolLM2-135M's shape over 512 cached tokens, one thread, by CPU time.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

#include "core/dispatch.h"
#include "core/kv_pool.h"

using namespace cacheir;

namespace {

double cpu() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

int main() {
  const KernelTable& table = chosen_table();
  constexpr int tokens = 512, heads = 3, group = 3, dim = 64;
  std::vector<float> values(tokens * heads * dim, 0.25f), q(tokens * heads * group * dim, 0.5f), scratch(attend_scratch_floats(dim)), states(kMaxQueryRows * (dim + 2)), out(q.size());
  std::vector<int32_t> slots(tokens), pages(tokens / 16);
  for (int t = 0; t < tokens; ++t) slots[static_cast<size_t>(t)] = t;
  for (int p = 0; p < tokens / 16; ++p) pages[static_cast<size_t>(p)] = p;
  for (bool rounded : {false, true})
  for (KvFormat format : {KvFormat::f32, KvFormat::f16, KvFormat::bf16, KvFormat::int8}) {
    const int most = rounded ? kMaxQueryRows : kExactQueryRows;
    KvPool pool(table, format, 1, heads, dim, tokens / 16, 16);
    const KvLayer layer = pool.layer(0);
    const AppendKv append{&layer, values.data(), values.data(), heads * dim, heads, slots.data(), 0, tokens};
    double best_append = 1e9, best_prompt = 1e9, best_token = 1e9;
    for (int repeat = 0; repeat < 40; ++repeat) {
      double start = cpu();
      table.append_kv(&append);
      best_append = std::min(best_append, cpu() - start);
      const auto run = [&](int first, int last) {
        for (int h = 0; h < heads; ++h)
          for (int i = first * group; i < last * group; i += most) {
            Attend task{};
            task.kv = &layer;
            task.head = h;
            task.pages = pages.data();
            task.rows = std::min(most, last * group - i);
            task.rounded = rounded;
            task.scale = 0.125f;
            task.scratch = scratch.data();
            for (int m = 0; m < task.rows; ++m) {
              task.q[m] = q.data() + ((i + m) / group * heads * group + h * group + (i + m) % group) * dim;
              task.position[m] = (i + m) / group;
              task.state[m] = states.data() + m * (dim + 2);
              std::fill_n(task.state[m], dim + 2, 0.0f);
              task.state[m][0] = -1e30f;
            }
            task.last_chunk = task.position[task.rows - 1] / kChunkKeys + 1;
            table.attend(&task);
            for (int m = 0; m < task.rows; ++m) table.finish_state(task.state[m], out.data(), dim);
          }
      };
      start = cpu();
      run(0, tokens);
      best_prompt = std::min(best_prompt, cpu() - start);
      start = cpu();
      run(tokens - 1, tokens);
      best_token = std::min(best_token, cpu() - start);
    }
    const double operations = 2.0 * 2 * dim * heads * group * tokens * (tokens + 1) / 2;
    std::printf("%s kv %d rounded %d: append %.3f ms, prompt of %d %.2f ms (%.1f GFLOP/s), one token %.1f us\n", table.name, static_cast<int>(format), rounded, best_append * 1e3, tokens, best_prompt * 1e3, operations / best_prompt / 1e9, best_token * 1e6);
  }
}
