// A matrix times several rows, plus the residual: few blocks, each with many outputs and a part of the columns.
//
// What a block reads of the rows is then little beside its weights.  A cluster of SPLIT blocks shares the columns of 16 TILES
// GROUPS outputs of the matrix as it is stored; of a block's warps each takes TILES tiles and one of PARTS parts of the columns.
// Weights stream through a ring of each warp, STAGES steps of 64 columns, so that whole lines are asked for; the first of them
// before the wait.  Rows stream beside them, SLOTS steps for the GROUPS warps of a part.  Every block finishes some of the
// outputs, whose sums the others send.
#pragma once
#include "cluster.cuh"
#include "rows_product.cuh"

// EARLY: the product begins with the first of the rows, while those behind it are on their way, and so do the next weights.
// ROOM: there are registers to hold the residual all the while.
template <int K, int TILES, int GROUPS, int PARTS, int SPLIT, int STAGES, int SLOTS, int ROW_TILES, bool EARLY, bool ROOM>
__device__ __forceinline__ void rows_residual(const RowsProductArguments &a) {
  constexpr int STEPS = K / 64, R = 8 * ROW_TILES, WARPS = GROUPS * PARTS, THREADS = WARPS * 32, STAGE = TILES * 2048;
  constexpr int MOST = ((STEPS + SPLIT - 1) / SPLIT + PARTS - 1) / PARTS;  // steps of a part
  constexpr int OUTPUTS = 16 * TILES * GROUPS, QUADS = OUTPUTS / 4, OWN = (QUADS + SPLIT - 1) / SPLIT, STRIDE = OUTPUTS + 4;
  constexpr int RING = WARPS * STAGES * STAGE, SLOT = ROW_TILES * 1024, ROWS_BYTES = PARTS * SLOTS * SLOT;
  constexpr int SUMS = PARTS * R * STRIDE * 4;
  constexpr bool ALL = SLOTS >= MOST;  // the rows need no second turn
  constexpr int LANES = OWN <= 1 ? 1 : OWN <= 2 ? 2 : OWN <= 4 ? 4 : 8;         // of a row that is finished
  constexpr int SQUARES = SPLIT <= 1 ? 1 : SPLIT <= 2 ? 2 : SPLIT <= 4 ? 4 : 8;  // parts that a cluster leaves
  static_assert(K % 64 == 0 && STEPS / SPLIT >= PARTS && OWN <= 8, "split");
  static_assert(GROUPS == 1 || PARTS <= 15, "barriers");
  static_assert(SLOTS <= MOST && SLOTS >= (MOST < 2 ? MOST : 2), "slots");
  static_assert(R * LANES <= THREADS, "a thread finishes a quad of a row");
  static_assert(!EARLY || SLOTS > 1, "a group of copies for each step of the rows");
  extern __shared__ __align__(128) char held[];  // the ring and the rows, later the sums of the parts; then what others send
  float4(*const come)[R][OWN] = (float4(*)[R][OWN])(held + (RING + ROWS_BYTES > SUMS ? RING + ROWS_BYTES : SUMS));
  __shared__ __align__(8) unsigned long long arrived;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int group = warp % GROUPS, part = warp / GROUPS, rank = blockIdx.x % SPLIT, first_output = blockIdx.x / SPLIT * OUTPUTS;
  const int block_from = rank * STEPS / SPLIT, block_steps = (rank + 1) * STEPS / SPLIT - block_from;
  const int from = block_from + part * block_steps / PARTS, steps = block_from + (part + 1) * block_steps / PARTS - from;
  const int owned = max(0, min(OWN, QUADS - rank * OWN));  // quads of outputs that this block finishes
  [[maybe_unused]] constexpr int KERNEL = K > 4096 ? 4 : 2;  // of a layer, for stamps
  STAMP(KERNEL, 0);
  let_next_start();

  // 1. The first of the weights, and all else that is known already.  A copy of the warp is of 4 rows by 128 bytes; in
  // shared memory odd rows have their halves exchanged, so that neighbouring rows of a half lie in other banks.
  const int copy_row = lane >> 3, copy_piece_of_row = lane & 7;
  const u32 ring = shared_address(held) + warp * STAGES * STAGE + copy_row * 128 + ((copy_piece_of_row ^ (copy_row & 1) << 2)) * 16;
  const bf16 *next = a.weights + (size_t)(first_output + group * TILES * 16 + copy_row) * K + from * 64 + copy_piece_of_row * 8;
  auto ask = [&](int stage, int step, bool any) {
    if (any)
#pragma unroll
      for (int i = 0; i < TILES * 4; i++) copy_piece(ring + stage * STAGE + i * 512, next + (size_t)i * 4 * K + step * 64);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) ask(i, i, i < steps);  // little code: a kernel begins with none of it at hand
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&arrived), 1);
    expect_bytes(shared_address(&arrived), SPLIT * R * owned * 16);
  }
  arrive_at_cluster();
  __syncthreads();
  if (a.page_bytes) bring_pages(a);
  const bf16 *rows = a.rows + (size_t)from * 512 + lane * 8;
  asm volatile("" : "+l"(rows));  // read the launch's parameters now, not after the wait
  const u32 slots = shared_address(held) + RING + part * SLOTS * SLOT + lane * 16;
  auto ask_rows = [&](int slot, int step) {
#pragma unroll
    for (int first = 0; first < 2 * ROW_TILES; first += GROUPS) {
      const int i = first + group;  // half of a row tile's step
      if (first + GROUPS <= 2 * ROW_TILES || i < 2 * ROW_TILES)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(slots + slot * SLOT + i * 512), "l"(rows + (i / 2 * (K / 32) + 2 * step + i % 2) * 256) : "memory");
    }
  };
  auto meet = [&] {  // the warps of a part
    if (GROUPS > 1) asm volatile("bar.sync %0, %1;" :: "r"(part + 1), "n"(GROUPS * 32) : "memory");
    else __syncwarp();
  };

  const int row = threadIdx.x / LANES, quad = threadIdx.x % LANES, output = first_output + 4 * (OWN * rank + quad);
  const bool finishes = row < R && quad < owned;
  const size_t place = (size_t)row * a.outputs + output;
  float4 gain = make_float4(0, 0, 0, 0), residual = gain;
  if (ROOM && finishes) gain = *(const float4 *)(a.gain + output);

  // 2. The first of the rows, and the residual: asked for behind the product it would come later than the others' sums.
  STAMP(KERNEL, 1);
  wait_for_previous();
  STAMP(KERNEL, 2);
#pragma unroll 1
  for (int i = 0; i < SLOTS; i++) {
    if (i < steps) ask_rows(i, i);
    if (EARLY) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  if (ROOM && finishes) residual = load_floats(a.residual + place);
  if (!EARLY) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    meet();
  }

  // 3. The product.
  STAMP(KERNEL, 3);
  float sum[TILES][ROW_TILES][4] = {};
  const char *own_rows = held + RING + part * SLOTS * SLOT + lane * 16;
  const char *own_ring = held + warp * STAGES * STAGE + g * 128 + t * 16;
  const int half = (g & 1) * 64;
  int stage = 0, slot = 0;
#pragma unroll 1
  for (int p = 0; p < steps; p++) {
    // The weights of this step were asked for STAGES groups ago, its rows SLOTS - 1; early, those of the first steps are
    // groups of their own behind the first weights.
    if (EARLY && p < (STAGES < SLOTS ? STAGES : SLOTS))
      asm volatile("cp.async.wait_group %0;" :: "n"(SLOTS - 1) : "memory");
    else
      asm volatile("cp.async.wait_group %0;" :: "n"(ALL || STAGES - 1 < SLOTS - 2 ? STAGES - 1 : SLOTS - 2) : "memory");
    if (!EARLY && (ALL || p == 0)) __syncwarp();
    else meet();  // its rows are there, those before it have been read
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint4 x[ROW_TILES];
#pragma unroll
      for (int c = 0; c < ROW_TILES; c++) x[c] = *(const uint4 *)(own_rows + slot * SLOT + c * 1024 + h * 512);
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const char *at = own_ring + stage * STAGE + n * 2048 + (h ? 64 - half : half);
        const uint4 u = *(const uint4 *)at, v = *(const uint4 *)(at + 1024);
#pragma unroll
        for (int c = 0; c < ROW_TILES; c++) {
          multiply_add(sum[n][c], u.x, v.x, u.y, v.y, x[c].x, x[c].y);
          multiply_add(sum[n][c], u.z, v.z, u.w, v.w, x[c].z, x[c].w);
        }
      }
    }
    __syncwarp();  // the stage has been read
    if (!ALL && p && p - 1 + SLOTS < steps) ask_rows(slot ? slot - 1 : SLOTS - 1, p - 1 + SLOTS);
    ask(stage, STAGES, p + STAGES < steps);
    if (++stage == STAGES) stage = 0;
    if (++slot == SLOTS) slot = 0;
    next += 64;
  }
  STAMP(KERNEL, 4);
  if (!ROOM && finishes) {
    gain = *(const float4 *)(a.gain + output);
    residual = load_floats(a.residual + place);
  }
  __syncthreads();  // all weights and rows have been read
  float *const sums = (float *)held;
#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        sums[(part * R + 8 * c + 2 * t + (i & 1)) * STRIDE + (group * TILES + n) * 16 + 8 * (i >> 1) + g] = sum[n][c][i];
  __syncthreads();
  wait_for_cluster();
#pragma unroll
  for (int first = 0; first < R * QUADS; first += THREADS) {
    const int i = first + threadIdx.x, of_row = i / QUADS, of_quad = i % QUADS, to = of_quad / OWN;
    if (i >= R * QUADS) break;
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
      const float4 one = *(const float4 *)(sums + (q * R + of_row) * STRIDE + 4 * of_quad);
      all.x += one.x; all.y += one.y; all.z += one.z; all.w += one.w;
    }
    store_there(in_block(shared_address(&come[rank][of_row][of_quad % OWN]), to), in_block(shared_address(&arrived), to),
                all.x, all.y, all.z, all.w);
  }

  // 4. The sum over the blocks, and what comes after it.
  if ((threadIdx.x & ~31) >= R * LANES) return;
  await_bytes(shared_address(&arrived));
  STAMP(KERNEL, 5);
  float squared = 0;
  if (finishes) {
    float4 v = residual;
#pragma unroll
    for (int other = 0; other < SPLIT; other++) {
      const float4 one = come[other][row][quad];
      v.x += one.x; v.y += one.y; v.z += one.z; v.w += one.w;
    }
    *(float4 *)((float *)a.out + place) = v;
    *(uint2 *)(a.next + tiled(row, output, a.outputs)) = make_uint2(pack(v.x * gain.x, v.y * gain.y), pack(v.z * gain.z, v.w * gain.w));
    squared = (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  squared = lane_sum<LANES>(squared);
  if (row < R && quad == 0) {
    float *squares = a.next_squares + (size_t)row * (gridDim.x / SPLIT * SQUARES) + blockIdx.x / SPLIT * SQUARES;
    squares[rank] = squared;
    if (rank == SPLIT - 1)
#pragma unroll
      for (int i = SPLIT; i < SQUARES; i++) squares[i] = 0;
  }
  STAMP(KERNEL, 7);
}
