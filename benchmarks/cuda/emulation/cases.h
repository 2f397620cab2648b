// The kernels for several rows on a processor (device.h), each beside a product in float64 with random numbers.
#pragma once
#include "kernels.h"  // made of cacheir-cuda/cpp by emulate.py

typedef std::vector<float> Floats;

inline std::mt19937 random_bits;
inline float draw() {
  static std::normal_distribution<float> drawn;
  return drawn(random_bits);
}
// So many numbers on a border of 128 bytes; what no kernel wrote is no number.
template <class T> struct Array {
  std::vector<T> held;
  explicit Array(size_t count) : held(count + 128 / sizeof(T)) { memset(held.data(), 0xff, held.size() * sizeof(T)); }
  T *at() { return (T *)(((uintptr_t)held.data() + 127) / 128 * 128); }
  T &operator[](size_t i) { return at()[i]; }
};
inline void fill(Array<bf16> &to, size_t count, float scale) {
  for (size_t i = 0; i < count; i++) to[i] = __float2bfloat16(draw() * scale);
}
// Random rows as the products read them, and as they are.
template <int K> Floats draw_rows(Array<bf16> &to, int rows) {
  Floats plain(rows * K);
  for (int row = 0; row < rows; row++)
    for (int k = 0; k < K; k++) {
      const bf16 drawn = __float2bfloat16(draw());
      plain[row * K + k] = __bfloat162float(drawn);
      to[tiled(row, k, K)] = drawn;
    }
  return plain;
}
template <int K> double product(const Floats &rows, int row, Array<bf16> &matrix, size_t output) {
  double sum = 0;
  for (int k = 0; k < K; k++) sum += (double)rows[row * K + k] * __bfloat162float(matrix[output * K + k]);
  return sum;
}
// A matrix as packing.py packs it, a tile of 16 rows together; row `r` of tile `t` is `row_of(t, r)`.
template <int K> Array<bf16> packed(Array<bf16> &matrix, int tiles, const std::function<size_t(int, int)> &row_of) {
  Array<bf16> made((size_t)tiles * 16 * K);
  for (int tile = 0; tile < tiles; tile++)
    for (int step = 0; step < K / 32; step++)
      for (int i = 0; i < 512; i++) {
        const int lane = i % 256 / 8, e = i % 8, part = e / 2;
        const int row = (lane >> 2) + 8 * (part & 1), k = step * 32 + 8 * (lane & 3) + i / 256 * 4 + 2 * (part >> 1) + (e & 1);
        made[packed_step<K, 1>(tile, step) / 2 + i] = matrix[row_of(tile, row) * K + k];
      }
  return made;
}

struct Error {
  double worst = 0, largest = 0;
  bool missing = false;
  void of(double found, double expected) {
    missing |= found != found;
    worst = max(worst, std::fabs(found - expected));
    largest = max(largest, std::fabs(expected));
  }
  bool tell(const char *name, double allowed = 0.01) const {
    const bool right = !missing && worst < allowed * largest;
    printf("%s %s%s: error %.1e%s\n", right ? "ok   " : "WRONG", name, LATE ? ", copies late" : "", worst / largest,
           missing ? ", and some is not written" : "");
    fflush(stdout);
    return right;
  }
};

// Each case has the template parameters of its kernel.
template <int K, int TOGETHER, int WARPS, Epilogue EPILOGUE, int STAGES, int ROW_TILES> bool rows_stream_case(const char *name) {
  static_assert(TOGETHER == 1 && EPILOGUE == Epilogue::swiglu, "other streams are not emulated");
  constexpr int BLOCKS = 10, TILES = 2 * BLOCKS + 4, N = 8 * TILES, R = 8 * ROW_TILES, PARTS = 96;
  Array<bf16> matrix((size_t)2 * N * K), rows(R * K), out(R * N);
  Array<float> squares(R * PARTS);
  fill(matrix, (size_t)2 * N * K, 0.05f);
  const Floats plain = draw_rows<K>(rows, R);
  for (int i = 0; i < R * PARTS; i++) squares[i] = std::fabs(draw()) * K / PARTS;
  Array<bf16> weights = packed<K>(matrix, TILES, [](int tile, int row) { return (size_t)(row < 8 ? 0 : N - 8) + tile * 8 + row; });
  RowsProductArguments a{};
  a.weights = weights.at(), a.rows = rows.at(), a.squares = squares.at(), a.out = out.at();
  a.square_count = PARTS, a.outputs = N, a.eps = 1e-6f;
  for (int block = 0; block < BLOCKS; block++)
    run_cluster(block, 1, WARPS * 32, BLOCKS, [&] { rows_stream<K, TOGETHER, WARPS, EPILOGUE, STAGES, ROW_TILES>(a); }, random_bits);
  Error error;
  for (int row = 0; row < R; row++) {
    double sum = 0;
    for (int i = 0; i < PARTS; i++) sum += squares[row * PARTS + i];
    const double scale = 1 / std::sqrt(sum / K + 1e-6);
    for (int n = 0; n < N; n++) {
      const double gate = product<K>(plain, row, matrix, n) * scale, up = product<K>(plain, row, matrix, N + n) * scale;
      error.of(__bfloat162float(out[tiled(row, n, N)]), gate / (1 + std::exp(-gate)) * up);
    }
  }
  return error.tell(name);
}

template <int K, int TILES, int GROUPS, int PARTS, int SPLIT, int STAGES, int SLOTS, int ROW_TILES, bool EARLY, bool ROOM>
bool rows_residual_case(const char *name) {
  constexpr int CLUSTERS = 2, N = CLUSTERS * 16 * TILES * GROUPS, R = 8 * ROW_TILES;
  constexpr int SQUARES = CLUSTERS * (SPLIT <= 1 ? 1 : SPLIT <= 2 ? 2 : SPLIT <= 4 ? 4 : 8);
  Array<bf16> matrix((size_t)N * K), rows(R * K), next(R * N);
  Array<float> residual(R * N), gain(N), out(R * N), squares(R * SQUARES);
  fill(matrix, (size_t)N * K, 0.05f);
  const Floats plain = draw_rows<K>(rows, R);
  for (int i = 0; i < R * N; i++) residual[i] = draw();
  for (int i = 0; i < N; i++) gain[i] = draw();
  RowsProductArguments a{};
  a.weights = matrix.at(), a.rows = rows.at(), a.residual = residual.at(), a.gain = gain.at(), a.out = out.at();
  a.next = next.at(), a.next_squares = squares.at(), a.outputs = N;
  for (int i = 0; i < CLUSTERS; i++)
    run_cluster(i * SPLIT, SPLIT, GROUPS * PARTS * 32, CLUSTERS * SPLIT,
                [&] { rows_residual<K, TILES, GROUPS, PARTS, SPLIT, STAGES, SLOTS, ROW_TILES, EARLY, ROOM>(a); }, random_bits);
  Error error, of_next, of_squares;
  for (int row = 0; row < R; row++) {
    double expected = 0, found = 0;
    for (int n = 0; n < N; n++) {
      const double v = residual[row * N + n] + product<K>(plain, row, matrix, n);
      error.of(out[row * N + n], v);
      if (N % 32 == 0) of_next.of(__bfloat162float(next[tiled(row, n, N)]), v * gain[n]);
      expected += v * v;
    }
    for (int i = 0; i < SQUARES; i++) found += squares[row * SQUARES + i];
    of_squares.of(found, expected);
  }
  const bool rest = (N % 32 || of_next.worst < 0.01 * of_next.largest) && of_squares.worst < 1e-4 * of_squares.largest;
  error.missing |= !rest || of_next.missing || of_squares.missing;
  return error.tell(name, 1e-5);
}

template <int K, int TOGETHER, int TILES, int GROUPS, int PARTS, int SPLIT, int ROW_TILES> bool rows_parts_case(const char *name) {
  static_assert(TOGETHER == 1, "as packed() packs it");
  constexpr int EACH = 16 * TILES * GROUPS, N = 2 * EACH, R = 8 * ROW_TILES;
  Array<bf16> matrix((size_t)N * K), rows(R * K);
  Array<float> out(R * SPLIT * N);
  fill(matrix, (size_t)N * K, 0.05f);
  const Floats plain = draw_rows<K>(rows, R);
  Array<bf16> weights = packed<K>(matrix, N / 16, [](int tile, int row) { return (size_t)tile * 16 + row; });
  RowsProductArguments a{};
  a.weights = weights.at(), a.rows = rows.at(), a.out = out.at(), a.outputs = N;
  for (int block = 0; block < N / EACH * SPLIT; block++)
    run_cluster(block, 1, GROUPS * PARTS * 32, N / EACH * SPLIT, [&] { rows_parts<K, TOGETHER, TILES, GROUPS, PARTS, SPLIT, ROW_TILES>(a); },
                random_bits);
  Error error;
  for (int row = 0; row < R; row++)
    for (int n = 0; n < N; n++) {
      double found = 0;
      for (int part = 0; part < SPLIT; part++) found += out[((size_t)row * SPLIT + part) * N + n];
      error.of(found, product<K>(plain, row, matrix, n));
    }
  return error.tell(name, 1e-5);
}
