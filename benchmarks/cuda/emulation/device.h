// What the kernels for several rows use of a GPU, on a processor: threads as fibers, a cluster of blocks at a time.
//
// Copies to shared memory land at once or, LATE, no sooner than a thread waits for their group; shared memory begins as no
// numbers; warps run in changing order.  A read of what the kernel before writes ahead of the wait, an address that is not
// aligned or not of the block's shared memory, and a wait without end stop the program.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

using std::max;
using std::min;
typedef unsigned u32;
#define __device__
#define __host__
#define __forceinline__ inline
#define STAMP(KERNEL, PLACE)

struct bf16 { uint16_t v; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 a, u32 b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline float float_of(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
inline bf16 __float2bfloat16(float f) {
  u32 bits;
  memcpy(&bits, &f, 4);
  return f != f ? bf16{0x7fff} : bf16{(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(bf16 b) { return float_of((u32)b.v << 16); }
inline u32 pack(float a, float b) { return __float2bfloat16(a).v | (u32)__float2bfloat16(b).v << 16; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }

[[noreturn]] inline void stop(const char *why) {
  printf("WRONG %s\n", why);
  exit(3);
}

// A block: its shared memory, dynamic first, and where each static variable of it lies.
constexpr size_t SHARED = 300 * 1024, STATIC_FROM = 230 * 1024;
struct Block {
  char *shared;
  size_t statics_used;
  int number;
  std::map<int, size_t> statics;
};
typedef std::vector<std::pair<char *, const char *>> Copies;
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool over = false, waited = false;  // for the kernel before
  int thread, block;
  Copies open;                  // asked for since the last group was closed
  std::vector<Copies> groups;   // not waited for
  u32 a[4], b[2];               // its part of a product's operands
  float given;                  // to other lanes
};
struct Meeting { int came = 0; long turn = 0; };
struct Counted { int expected, pending; long bytes; int phase; };  // an mbarrier

inline std::vector<Block> blocks;  // of the cluster
inline std::vector<Fiber> fibers;
inline Fiber *now;
inline ucontext_t scheduler;
inline std::map<u32, Counted> counted;
inline std::map<std::pair<int, int>, Meeting> meetings;
inline int threads_of_block;
inline bool LATE;
struct { int x; } inline gridDim;
struct { struct { operator int() const { return now->thread; } } x; } inline threadIdx;
struct { struct { operator int() const { return blocks[now->block].number; } } x; } inline blockIdx;

inline void let_others_run() { swapcontext(&now->context, &scheduler); }
inline void meet(int block, int name, int count) {
  Meeting &one = meetings[{block, name}];
  const long turn = one.turn;
  if (++one.came == count) { one.came = 0; one.turn++; }
  while (one.turn == turn) let_others_run();
}
inline void __syncthreads() { meet(now->block, 0, threads_of_block); }
inline void __syncwarp() { meet(now->block, 1000 + now->thread / 32, 32); }
inline void named_barrier(int name, int count) { meet(now->block, name, count); }
inline Fiber &lane_of_warp(int lane) { return fibers[now->block * threads_of_block + now->thread / 32 * 32 + lane]; }
inline float __shfl_xor_sync(u32, float v, int offset) {
  now->given = v;
  __syncwarp();
  const float found = lane_of_warp((now->thread & 31) ^ offset).given;
  __syncwarp();
  return found;
}
template <int LANES> inline float lane_sum(float v) {
  for (int offset = LANES / 2; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}
// mma.m16n8k16: lane (g, t) has rows g and g + 8, and of k 2 t, 2 t + 1 and eight further on.
inline void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 a[4] = {a0, a1, a2, a3};
  memcpy(now->a, a, sizeof a);
  now->b[0] = b0;
  now->b[1] = b1;
  __syncwarp();
  const int lane = now->thread & 31, g = lane >> 2, t = lane & 3;
  for (int j = 0; j < 4; j++) {
    const int row = g + 8 * (j >> 1), column = 2 * t + (j & 1);
    double sum = c[j];
    for (int k = 0; k < 16; k++) {
      const u32 x = lane_of_warp((row & 7) * 4 + (k & 7) / 2).a[(row >> 3) + 2 * (k >> 3)];
      const u32 y = lane_of_warp(column * 4 + (k & 7) / 2).b[k >> 3];
      sum += (double)float_of(k & 1 ? x & 0xffff0000u : x << 16) * float_of(k & 1 ? y & 0xffff0000u : y << 16);
    }
    c[j] = sum;
  }
  __syncwarp();
}

// A shared address is the block's place in its cluster, and behind it 20 bits.
inline char *at_shared(u32 address) { return blocks[address >> 20].shared + (address & 0xfffff); }
inline u32 shared_address(const void *p) {
  const long offset = (const char *)p - blocks[now->block].shared;
  if (offset < 0 || offset >= (long)SHARED) stop("an address is not of this block's shared memory");
  return (u32)now->block << 20 | (u32)offset;
}
template <class T> T &static_shared(int variable) {
  Block &block = blocks[now->block];
  if (!block.statics.count(variable)) {
    block.statics[variable] = STATIC_FROM + block.statics_used;
    block.statics_used += (sizeof(T) + 127) / 128 * 128;
  }
  return *(T *)(block.shared + block.statics[variable]);
}
inline u32 in_block(u32 address, int rank) { return (u32)rank << 20 | (address & 0xfffff); }
inline void count(Counted &one, int arrivals, long bytes) {
  one.pending -= arrivals;
  one.bytes += bytes;
  if (!one.pending && !one.bytes) { one.phase++; one.pending = one.expected; }
}
inline void barrier_init(u32 barrier, int arrivals) { counted[barrier] = {arrivals, arrivals, 0, 0}; }
inline void expect_bytes(u32 barrier, int bytes) { count(counted.at(barrier), 1, bytes); }
inline void await_bytes(u32 barrier) { while (!counted.at(barrier).phase) let_others_run(); }
inline void store_there(u32 to, u32 barrier, float a, float b, float c, float d) {
  const float4 v = {a, b, c, d};
  if (to & 15) stop("a store into another block is not aligned");
  memcpy(at_shared(to), &v, sizeof v);
  count(counted.at(barrier), 0, -16);
}
inline void arrive_at_cluster() { meetings[{-1, 0}].came++; }
inline void wait_for_cluster() { while (meetings[{-1, 0}].came < (int)fibers.size()) let_others_run(); }

inline void copy_piece(u32 to, const void *from) {
  if ((to | (uintptr_t)from) & 15) stop("a copy is not aligned");
  now->open.push_back({at_shared(to), (const char *)from});
  if (!LATE) memcpy(at_shared(to), from, 16);
}
inline void land(const Copies &copies) {
  if (LATE) for (const auto &[to, from] : copies) memcpy(to, from, 16);
}
inline void close_group() {
  now->groups.push_back(now->open);
  now->open.clear();
}
inline void await_groups(int but) {
  for (; (int)now->groups.size() > but; now->groups.erase(now->groups.begin())) land(now->groups[0]);
}
inline void await_copies() {
  await_groups(0);
  land(now->open);
  now->open.clear();
}

inline void let_next_start() {}
inline void wait_for_previous() { now->waited = true; }
inline void must_have_waited() { if (!now->waited) stop("rows are read before the wait"); }
template <class T> T loaded(const void *at) {
  must_have_waited();
  T v;
  memcpy(&v, at, sizeof v);
  return v;
}
inline uint4 load_activation(const void *at) { return loaded<uint4>(at); }
inline float4 load_floats(const float *at) { return loaded<float4>(at); }
inline void copy_rows(u32 to, const void *from) { must_have_waited(); copy_piece(to, from); }
inline uint4 load_weight(const void *at) { uint4 v; memcpy(&v, at, sizeof v); return v; }
enum class Epilogue { qkv, residual, swiglu, head };

// The blocks `first` to `first` + `size` of `grid`, a cluster.
inline void run_cluster(int first, int size, int threads, int grid, const std::function<void()> &kernel, std::mt19937 &random) {
  static std::vector<char> memory(8 * SHARED + 128);
  static const std::function<void()> *body;
  std::fill(memory.begin(), memory.end(), (char)0xff);
  char *const from = memory.data() + (128 - (uintptr_t)memory.data() % 128);
  blocks.clear(), fibers.clear(), counted.clear(), meetings.clear();
  for (int i = 0; i < size; i++) blocks.push_back({from + i * SHARED, 0, first + i, {}});
  threads_of_block = threads, gridDim.x = grid, body = &kernel;
  fibers.resize(size * threads);
  for (size_t i = 0; i < fibers.size(); i++) {
    Fiber &one = fibers[i];
    one.stack.resize(64 * 1024), one.thread = i % threads, one.block = i / threads;
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.data(), one.context.uc_stack.ss_size = one.stack.size(), one.context.uc_link = &scheduler;
    makecontext(&one.context, (void (*)())+[] { (*body)(); now->over = true; }, 0);
  }
  std::vector<int> warps(fibers.size() / 32);
  for (size_t i = 0; i < warps.size(); i++) warps[i] = i;
  bool any = true;
  for (long turn = 0; any; turn++) {
    if (turn > 20000) stop("a wait has no end");
    if (turn % 16 == 0) std::shuffle(warps.begin(), warps.end(), random);
    any = false;
    for (int warp : warps)
      for (int lane = 0; lane < 32; lane++)
        if (Fiber &one = fibers[warp * 32 + lane]; !one.over) {
          any = true, now = &one;
          swapcontext(&scheduler, &now->context);
        }
  }
}
