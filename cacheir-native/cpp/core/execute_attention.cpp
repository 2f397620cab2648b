// Attention over pages: tasks of a few query rows of one KV head; a step of few queries is split by chunks of keys too.
#include <cmath>
#include <limits>

#include "core/executor.h"
#include "core/program_check.h"

namespace cacheir {
namespace {

constexpr int kManyTasks = 8;  // for each worker: enough to share evenly

void clear_state(float* state, size_t padded) {
  state[0] = -std::numeric_limits<float>::infinity();
  std::fill_n(state + 1, padded + 1, 0.0f);
}

// What all tasks of one instruction share.
struct Plan {
  const Step* step;
  const GroupInputs* inputs;
  const float* q;
  float* out;
  int heads, group, dim;  // query heads, query heads of a KV head, head size
  float scale;
  int window, sinks;
  int most;  // query rows of a tile

  int queries(int row) const { return step->rows[static_cast<size_t>(row)].tokens * group; }
  int tiles(int row) const { return (queries(row) + most - 1) / most; }

  // Query `index` of a row and KV head: its place in q and out, in floats.
  size_t offset(int row, int head, int index) const {
    const int token = step->row_starts[static_cast<size_t>(row)] + index / group;
    return (static_cast<size_t>(token) * static_cast<size_t>(heads) + static_cast<size_t>(head * group + index % group)) * static_cast<size_t>(dim);
  }

  // Fills in the query rows of a tile; gives the first query's index.
  int describe(int row, int head, int tile, Attend& task) const {
    const int n = tiles(row), all = queries(row);
    const int first = all * tile / n, last = all * (tile + 1) / n;
    task.head = head;
    task.pages = inputs->page_table.data() + static_cast<size_t>(row) * static_cast<size_t>(inputs->width);
    task.rows = last - first;
    for (int m = 0; m < task.rows; ++m) {
      task.q[m] = q + offset(row, head, first + m);
      task.position[m] = step->rows[static_cast<size_t>(row)].position + (first + m) / group;
    }
    const int highest = task.position[task.rows - 1], lowest = task.position[0];
    task.last_chunk = highest / kChunkKeys + 1;
    task.first_chunk = window > 0 && sinks == 0 ? std::max(0, lowest - window + 1) / kChunkKeys : 0;
    return first;
  }
};

}  // namespace

void Executor::attention(const Instruction& i) {
  const KvPool& pool = *r.pools_[static_cast<size_t>(i.group)];
  const KvLayer kv = pool.layer(static_cast<int>(i.layer));
  const size_t padded = static_cast<size_t>(kv.padded_dim), state_floats = padded + 2;
  const int kv_heads = pool.heads(), batch = static_cast<int>(r.step_.rows.size());
  const float scale = i.scale != 0 ? static_cast<float>(i.scale) : 1.0f / std::sqrt(static_cast<float>(kv.head_dim));
  Plan plan{&r.step_, &r.step_.groups[static_cast<size_t>(i.group)], at(i.q), at(i.out), static_cast<int>(i.heads),
                  static_cast<int>(i.heads) / kv_heads, kv.head_dim, scale, static_cast<int>(i.window), static_cast<int>(i.sinks), 0};
  const bool rounded = !r.options_.precise && r.table_.bf16_dot;
  int total = 0, chunks = 1;
  for (const StepRow& row : r.step_.rows) chunks = std::max(chunks, (row.position + row.tokens - 1) / kChunkKeys + 1);
  // Large tiles share work, small ones are spread more evenly.
  for (plan.most = rounded ? kMaxQueryRows : kExactQueryRows;; plan.most /= 2) {
    total = 0;
    for (int b = 0; b < batch; ++b) total += plan.tiles(b) * kv_heads;
    if (plan.most <= kRoundedQueryRows || total >= kManyTasks * workers()) break;
  }
  float* scratch = r.scratch_[static_cast<size_t>(worker)];
  float* states = scratch + round_up(attend_scratch_floats(kv.head_dim), 16);
  Attend task{};
  task.kv = &kv;
  task.window = plan.window;
  task.sinks = plan.sinks;
  task.rounded = rounded;
  task.scale = scale;
  task.softcap = static_cast<float>(i.softcap);
  task.scratch = scratch;

  // Task number -> row, KV head, tile; the latest tiles, which see the most keys, come first.
  const auto locate = [&](int number, int& row, int& head, int& tile) {
    for (row = batch - 1; number >= plan.tiles(row) * kv_heads; --row) number -= plan.tiles(row) * kv_heads;
    head = number / plan.tiles(row);
    tile = plan.tiles(row) - 1 - number % plan.tiles(row);
  };

  const bool split = workers() > 1 && chunks > 1 && total < kFewTasks * workers();
  if (!split) {
    const int grain = std::max(1, std::min(8, total / (8 * workers())));
    while (true) {
      const auto [first, part] = r.pool_.next_piece(total, grain);
      if (part == 0) break;
      for (int number = first; number < first + part; ++number) {
        int row, head, tile;
        locate(number, row, head, tile);
        const int query = plan.describe(row, head, tile, task);
        for (int m = 0; m < task.rows; ++m) clear_state(task.state[m] = states + static_cast<size_t>(m) * state_floats, padded);
        r.table_.attend(&task);
        for (int m = 0; m < task.rows; ++m) r.table_.finish_state(task.state[m], plan.out + plan.offset(row, head, query + m), kv.head_dim);
      }
    }
    r.pool_.barrier(next_weights());
    return;
  }

  // States lie [task][chunk][query of the tile]; a chunk that a tile does not see leaves nothing.
  const auto state_of = [&](int number, int chunk, int m) {
    return r.partials_ + (static_cast<size_t>(number * chunks + chunk) * kRoundedQueryRows + static_cast<size_t>(m)) * state_floats;
  };
  while (true) {
    const auto [unit, part] = r.pool_.next_piece(total * chunks, 1);
    if (part == 0) break;
    const int number = unit / chunks, chunk = unit % chunks;
    int row, head, tile;
    locate(number, row, head, tile);
    plan.describe(row, head, tile, task);
    if (chunk < task.first_chunk || chunk >= task.last_chunk) continue;
    task.first_chunk = chunk;
    task.last_chunk = chunk + 1;
    for (int m = 0; m < task.rows; ++m) clear_state(task.state[m] = state_of(number, chunk, m), padded);
    r.table_.attend(&task);
  }
  r.pool_.barrier();
  for (int number = worker; number < total; number += workers()) {
    int row, head, tile;
    locate(number, row, head, tile);
    const int query = plan.describe(row, head, tile, task);
    for (int m = 0; m < task.rows; ++m) {
      clear_state(states, padded);
      for (int c = task.first_chunk; c < task.last_chunk; ++c) r.table_.merge_state(states, state_of(number, c, m), kv.padded_dim);
      r.table_.finish_state(states, plan.out + plan.offset(row, head, query + m), kv.head_dim);
    }
  }
  r.pool_.barrier(next_weights());
}

}  // namespace cacheir
