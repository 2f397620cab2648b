// A matrix of many columns times several rows, plus the residual: a cluster of blocks shares the columns.
//
// A block that took all columns would read all activations, and with few outputs a block that is more than the weights.
// Here a block has 16 TILES outputs and one RANKS-th of the columns, of the matrix as it is stored: its part lies in shared
// memory before the wait.  Every block sums over its warps and sends each quad of outputs to the block that finishes it.
#pragma once
#include "rows_attention.cuh"
#include "rows_product.cuh"

// One of several copies that `barrier` waits for.
__device__ __forceinline__ void copy_part(u32 target, const void *source, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(target), "l"(source), "r"(bytes), "r"(barrier), "l"(evict_first()) : "memory");
}
// Elements of a line in shared memory: 64 bytes keep two neighbouring lines in other banks.
constexpr __host__ __device__ int split_line(int columns) { return columns % 64 ? columns : columns + 32; }

template <int K, int TILES, int WARPS, int SPLIT, int ROW_TILES, int AT_ONCE>
__device__ __forceinline__ void rows_split(const RowsProductArguments &a) {
  constexpr int PART = K / SPLIT, SLICE = PART / WARPS, STEPS = SLICE / 32, R = 8 * ROW_TILES, LINE = split_line(PART);
  constexpr int OUTPUTS = 16 * TILES, QUADS = OUTPUTS / 4, STRIDE = OUTPUTS + 4, THREADS = WARPS * 32;
  static_assert(K % SPLIT == 0 && PART % WARPS == 0 && SLICE % 32 == 0 && ROW_TILES % AT_ONCE == 0, "split");
  static_assert(QUADS == SPLIT, "each block finishes a quad of outputs");
  static_assert(WARPS * R * STRIDE * 4 <= OUTPUTS * LINE * 2, "sums lie over the weights");
  extern __shared__ __align__(128) char held[];
  __shared__ __align__(16) float4 come[SPLIT][R];
  __shared__ __align__(8) unsigned long long there, arrived;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
  const int rank = blockIdx.x % SPLIT, first_output = blockIdx.x / SPLIT * OUTPUTS;
  let_next_start();
  if (warp == 0) {
    if (lane == 0) {
      barrier_init(shared_address(&there), 1);
      barrier_init(shared_address(&arrived), 1);
      expect_bytes(shared_address(&there), OUTPUTS * PART * 2);
      expect_bytes(shared_address(&arrived), SPLIT * R * 16);
    }
    __syncwarp();
    for (int i = lane; i < OUTPUTS; i += 32)
      copy_part(shared_address(held) + i * LINE * 2, a.weights + (size_t)(first_output + i) * K + rank * PART, PART * 2,
                shared_address(&there));
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");  // whoever writes to others waits for it
  __syncthreads();
  if (a.page_bytes) bring_pages(a);
  constexpr int ROUNDS = (R * 4 + THREADS - 1) / THREADS;  // a thread finishes one output of a row
  const int output = first_output + 4 * rank + (threadIdx.x & 3);
  const float gain = a.gain[output];
  const bf16 *rows = a.rows + (rank * (PART / 32) + warp * STEPS) * 256 + lane * 8;
  const float *residuals = a.residual + output;
  asm volatile("" : "+l"(rows), "+l"(residuals));  // read the launch's parameters now, not after the wait
  const bf16 *weights = (const bf16 *)held + g * LINE + warp * SLICE + 8 * t;

  wait_for_previous();
  float sum[TILES][ROW_TILES][4] = {}, residual[ROUNDS];
#pragma unroll
  for (int first = 0; first < ROW_TILES; first += AT_ONCE) {
    uint4 x[AT_ONCE][STEPS];
#pragma unroll
    for (int c = 0; c < AT_ONCE; c++)
#pragma unroll
      for (int p = 0; p < STEPS; p++) x[c][p] = load_activation(rows + ((first + c) * (K / 32) + p) * 256);
    if (first == 0) {
#pragma unroll
      for (int i = 0; i < ROUNDS; i++) {
        const int row = (i * THREADS + threadIdx.x) >> 2;
        residual[i] = row < R ? load_float(residuals + (size_t)row * a.outputs) : 0.f;
      }
      barrier_wait(shared_address(&there));
    }
#pragma unroll
    for (int p = 0; p < STEPS; p++)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        const uint4 u = *(const uint4 *)(weights + n * 16 * LINE + p * 32), v = *(const uint4 *)(weights + (n * 16 + 8) * LINE + p * 32);
#pragma unroll
        for (int c = 0; c < AT_ONCE; c++) {
          multiply_add(sum[n][first + c], u.x, v.x, u.y, v.y, x[c][p].x, x[c][p].y);
          multiply_add(sum[n][first + c], u.z, v.z, u.w, v.w, x[c][p].z, x[c][p].w);
        }
      }
  }
  __syncthreads();  // all weights have been read
  float *sums = (float *)held;
#pragma unroll
  for (int n = 0; n < TILES; n++)
#pragma unroll
    for (int c = 0; c < ROW_TILES; c++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[(warp * R + 8 * c + 2 * t + (i & 1)) * STRIDE + n * 16 + 8 * (i >> 1) + g] = sum[n][c][i];
  __syncthreads();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  for (int i = threadIdx.x; i < R * QUADS; i += THREADS) {
    const int row = i / QUADS, quad = i % QUADS;
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float4 one = *(const float4 *)(sums + (w * R + row) * STRIDE + 4 * quad);
      all.x += one.x; all.y += one.y; all.z += one.z; all.w += one.w;
    }
    store_there(in_block(shared_address(&come[rank][row]), quad), in_block(shared_address(&arrived), quad), all.x, all.y, all.z, all.w);
  }
  await_bytes(shared_address(&arrived));

#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    const int index = i * THREADS + threadIdx.x, row = index >> 2;
    if ((index & ~31) >= R * 4) break;
    float v = residual[i];
#pragma unroll
    for (int from = 0; from < SPLIT; from++) v += ((const float *)&come[from][row])[index & 3];
    const size_t place = (size_t)row * a.outputs + output;
    ((float *)a.out)[place] = v;
    a.next[tiled(row, output, a.outputs)] = __float2bfloat16(v * gain);
    const float squared = lane_sum<4>(v * v);
    if ((lane & 3) == 0) a.next_squares[(size_t)row * gridDim.x + blockIdx.x] = squared;
  }
}
