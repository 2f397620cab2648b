// Attention over pages: tasks of a few query rows of one KV head; a step of few queries is split by chunks of keys too.
#include <cmath>
#include <limits>
#include <utility>

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

// Whether the attention that follows a qkv turns and stores the heads of its tasks, which saves a barrier: where each
// row has one token, and one task all the queries of a KV head. The tables of angles are then read while it writes, so
// they must not lie in its result's place: their life ends with the qkv.
bool Executor::attention_turns(const Instruction& i) const {
  if (next >= end || next->opcode != Opcode::attention || i.group == kNone || next->q != i.q || next->group != i.group || next->layer != i.layer ||
      next->heads != i.heads)
    return false;
  const int64_t out_bytes = 4 * rows * i.heads * i.head_dim, table_bytes = 4 * rows * (i.dims / 2);
  const auto apart = [&](int64_t table) { return table == kNone || table + table_bytes <= next->out || next->out + out_bytes <= table; };
  return rows == static_cast<int>(r.step_.rows.size()) && i.heads <= i.kv_heads * kExactQueryRows && apart(i.cos) && apart(i.sin);
}

// Asks for the pages that this worker's tasks of an attention over rows of one token will read.
void Executor::ask_for_pages(const Instruction& i) const {
  constexpr size_t most_bytes = 128 << 10;
  const KvPool& pool = *r.pools_[static_cast<size_t>(i.group)];
  const KvLayer kv = pool.layer(static_cast<int>(i.layer));
  const GroupInputs& inputs = r.step_.groups[static_cast<size_t>(i.group)];
  const int heads = pool.heads(), total = rows * heads, last = r.pool_.share_begin(worker + 1, total, 1);
  size_t asked = 0;
  const auto ask = [&](const uint8_t* from, size_t bytes) {
    for (size_t j = 0; j < bytes; j += 64) __builtin_prefetch(from + j, 0, 2);
    asked += bytes;
  };
  for (int unit = r.pool_.share_begin(worker, total, 1); unit < last; ++unit) {
    const size_t row = static_cast<size_t>(rows - 1 - unit / heads);
    const int position = r.step_.positions[row], window = static_cast<int>(i.window);
    const int32_t* table = inputs.page_table.data() + row * static_cast<size_t>(inputs.width);
    const uint8_t* data = kv.data + static_cast<size_t>(unit % heads) * kv.head_stride;
    for (int p = window > 0 ? std::max(0, position - window + 1) / kv.page_tokens : 0; p <= position / kv.page_tokens; ++p) {
      if (asked >= most_bytes) return;
      const uint8_t* page = data + static_cast<size_t>(table[p]) * kv.page_stride;
      const size_t tokens = std::min(round_up(static_cast<size_t>(position + 1 - p * kv.page_tokens), 16), static_cast<size_t>(kv.page_tokens));
      ask(page, kv.value_offset / static_cast<size_t>(kv.page_tokens) * tokens);
      ask(page + kv.value_offset, (kv.key_scale_offset - kv.value_offset) / static_cast<size_t>(kv.page_tokens) * tokens);
    }
  }
}

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
  float* turned = states + static_cast<size_t>(kExactQueryRows) * state_floats;  // queries, where they are turned here
  const Instruction* const heads_of = std::exchange(unturned, nullptr);
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

  // What is new in a task's step: its queries, and the keys and values of its last chunk.
  const auto take_heads = [&](int row, int head, bool newest) {
    if (!heads_of) return;
    const size_t token = static_cast<size_t>(row), dim = static_cast<size_t>(plan.dim);
    for (int m = 0; m < task.rows; ++m) {
      turn(*heads_of, token, head * plan.group + m, turned + static_cast<size_t>(m) * dim);
      task.q[m] = turned + static_cast<size_t>(m) * dim;
    }
    if (newest) store(*heads_of, token, head);
  };

  const bool split = workers() > 1 && chunks > 1 && total < kFewTasks * workers();
  if (!split) {
    r.pool_.begin_share(worker);
    while (true) {
      const auto [first, part] = r.pool_.next_of_share(worker, total, 1, 8);
      if (part == 0) break;
      for (int number = first; number < first + part; ++number) {
        int row, head, tile;
        locate(number, row, head, tile);
        const int query = plan.describe(row, head, tile, task);
        take_heads(row, head, true);
        for (int m = 0; m < task.rows; ++m) clear_state(task.state[m] = states + static_cast<size_t>(m) * state_floats, padded);
        r.table_.attend(&task);
        for (int m = 0; m < task.rows; ++m) r.table_.finish_state(task.state[m], plan.out + plan.offset(row, head, query + m), kv.head_dim);
      }
    }
    r.pool_.barrier();
    return;
  }

  // States lie [task][chunk][query of the tile]; a chunk that a tile does not see leaves nothing.
  const auto state_of = [&](int number, int chunk, int m) {
    return r.partials_ + (static_cast<size_t>(number * chunks + chunk) * kRoundedQueryRows + static_cast<size_t>(m)) * state_floats;
  };
  r.pool_.begin_share(worker);
  while (true) {
    const auto [unit, part] = r.pool_.next_of_share(worker, total * chunks, 1, 1);
    if (part == 0) break;
    const int number = unit / chunks, chunk = unit % chunks;
    int row, head, tile;
    locate(number, row, head, tile);
    plan.describe(row, head, tile, task);
    if (chunk < task.first_chunk || chunk >= task.last_chunk) continue;
    take_heads(row, head, chunk + 1 == task.last_chunk);
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
  r.pool_.barrier();
}

}  // namespace cacheir
