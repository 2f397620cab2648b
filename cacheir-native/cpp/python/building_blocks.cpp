// rms_norm, silu_multiply, a packed matrix with its product, attention over a pool, sampling: one call each.
#include "python/building_blocks.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/sampling.h"
#include "python/arguments.h"

namespace py = pybind11;

namespace cacheir {
namespace {

using Floats = py::array_t<float, py::array::c_style>;

// Where a result goes: the caller's array, if one is given, or a new one.
Floats result_of(const py::object& out, const std::vector<py::ssize_t>& shape) {
  if (out.is_none()) return Floats(shape);
  if (!py::isinstance<Floats>(out)) throw std::invalid_argument("out must be a C-contiguous f32 array");
  Floats given = py::reinterpret_borrow<Floats>(out);
  if (std::vector<py::ssize_t>(given.shape(), given.shape() + given.ndim()) != shape) throw std::invalid_argument("out must have the result's shape");
  return given;
}

std::vector<py::ssize_t> shape_of(const Floats& x) { return {x.shape(), x.shape() + x.ndim()}; }

Floats rms_norm(const Floats& x, const Floats& weight, float eps, const py::object& result) {
  const py::ssize_t width = x.ndim() ? x.shape(x.ndim() - 1) : 0;
  if (width < 1 || weight.size() != width) throw std::invalid_argument("weight must have one element for each column of x");
  Floats out = result_of(result, shape_of(x));
  const float *from = x.data(), *w = weight.data();
  float* to = out.mutable_data();
  const py::ssize_t rows = x.size() / width;
  py::gil_scoped_release release;
  for (py::ssize_t r = 0; r < rows; ++r) chosen_table().rms_norm(from + r * width, w, eps, to + r * width, static_cast<int>(width));
  return out;
}

Floats silu_multiply(const Floats& gate, const Floats& up, const py::object& result) {
  if (gate.size() != up.size()) throw std::invalid_argument("gate and up must be of one size");
  Floats out = result_of(result, shape_of(gate));
  const float *a = gate.data(), *b = up.data();
  float* to = out.mutable_data();
  const size_t count = static_cast<size_t>(gate.size());
  py::gil_scoped_release release;
  chosen_table().elementwise(kSiluMultiply, a, b, to, count);
  return out;
}

// Threads and packed activations that the matrices of a process share, one product at a time.
class Workers {
 public:
  explicit Workers(int threads) : pool(threads, false) {}

  Activations activations(Act kind, int rows, int columns) {
    const size_t r = static_cast<size_t>(rows), c = static_cast<size_t>(columns);
    if (r > rows_ || c > columns_) {
      rows_ = std::max(r, rows_);
      columns_ = std::max(c, columns_);
      arena_ = HugeArena();
      buffer_.reserve(arena_, rows_, columns_);
      scratch.resize(columns_ + 64);
    }
    return buffer_.view(kind, rows, columns);
  }

  // Those for `threads`, which live as long as a matrix has them.
  static std::shared_ptr<Workers> shared(int threads) {
    static std::mutex guard;
    static std::map<int, std::weak_ptr<Workers>> known;
    const int count = threads > 0 ? threads : default_threads();
    const std::lock_guard<std::mutex> lock(guard);
    std::shared_ptr<Workers> found = known[count].lock();
    if (!found) known[count] = found = std::make_shared<Workers>(count);
    return found;
  }

  std::mutex turn;
  ThreadPool pool;
  std::vector<float> scratch;

 private:
  HugeArena arena_;
  ActivationBuffer buffer_;
  size_t rows_ = 0, columns_ = 0;
};

// A packed matrix and the threads that multiply by it.
class PackedMatrix {
 public:
  PackedMatrix(const py::handle& part, bool precise, int threads) : workers_(Workers::shared(threads)) {
    const GivenMatrix given = matrix_of(part);
    const Panel format = panel_of(given.matrix.format, precise, table_.bf16_dot != 0);
    kind_ = activations_of(format, precise, table_.bf16_dot != 0);
    const int panels = (given.matrix.rows + kPanelRows - 1) / kPanelRows;
    const size_t stride = panel_bytes(format, given.matrix.columns);
    memory_ = HugeMemory(stride * static_cast<size_t>(panels));
    matrix_ = {format, memory_.data(), stride, given.matrix.rows, given.matrix.columns, panels};
    py::gil_scoped_release release;
    pack_panels(given.matrix, matrix_, 0, panels);
  }

  // x [rows, columns] -> [rows, N]
  Floats multiply(const Floats& x, const py::object& result) {
    if (x.ndim() != 2 || x.shape(1) != matrix_.columns) throw std::invalid_argument("x must be [rows, " + std::to_string(matrix_.columns) + "]");
    const int rows = static_cast<int>(x.shape(0));
    Floats out = result_of(result, {x.shape(0), static_cast<py::ssize_t>(matrix_.rows)});
    if (rows == 0) return out;
    const Destination to{out.mutable_data(), static_cast<size_t>(matrix_.rows), nullptr, nullptr, 0, nullptr};
    const float* from = x.data();
    py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(workers_->turn);
    Activations a = workers_->activations(kind_, rows, matrix_.columns);
    const PackRows pack{from, static_cast<size_t>(matrix_.columns), nullptr, 0, workers_->scratch.data(), &a, 0, rows};
    table_.pack_rows(&pack);
    Job job{this, &a, &to};
    workers_->pool.run(work, &job);
    return out;
  }

  Floats dense() const {
    Floats out({static_cast<py::ssize_t>(matrix_.rows), static_cast<py::ssize_t>(matrix_.columns)});
    for (int row = 0; row < matrix_.rows; ++row) unpack_row(matrix_, row, out.mutable_data(row));
    return out;
  }

  size_t bytes() const { return memory_.size(); }

 private:
  struct Job {
    PackedMatrix* self;
    const Activations* x;
    const Destination* to;
  };
  static void work(void* context, int worker) {
    const Job& job = *static_cast<Job*>(context);
    const Matrix& m = job.self->matrix_;
    const int n = job.self->workers_->pool.threads();
    job.self->table_.matmul(&m, job.x, m.panels * worker / n, m.panels * (worker + 1) / n, job.to);
  }

  const KernelTable& table_ = chosen_table();
  std::shared_ptr<Workers> workers_;
  HugeMemory memory_;
  Matrix matrix_{};
  Act kind_{};
};

int32_t sample_row(const Floats& logits, float temperature, int32_t top_k, float top_p, float min_p, uint64_t seed, int32_t position, int64_t draw, const py::object& mask) {
  if (logits.size() < 1) throw std::invalid_argument("logits must not be empty");
  Sampling how;
  how.temperature = temperature;
  how.top_k = top_k;
  how.top_p = top_p;
  how.min_p = min_p;
  how.seed = seed;
  py::array_t<uint32_t, py::array::c_style> words;
  if (!mask.is_none()) {
    words = mask.cast<py::array_t<uint32_t, py::array::c_style>>();
    if (words.size() != (logits.size() + 31) / 32) throw std::invalid_argument("the mask must have a bit for each logit");
  }
  Sampler sampler(static_cast<int>(logits.size()));
  return sampler.sample(logits.data(), how, position, draw, mask.is_none() ? nullptr : words.data());
}

}  // namespace

void add_building_blocks(py::module_& m) {
  m.def("rms_norm", &rms_norm, py::arg("x").noconvert(), py::arg("weight").noconvert(), py::arg("eps"), py::kw_only(), py::arg("out") = py::none(), "x [..., H], weight [H] -> like x");
  m.def("silu_multiply", &silu_multiply, py::arg("gate").noconvert(), py::arg("up").noconvert(), py::kw_only(), py::arg("out") = py::none(), "silu(gate) * up");
  m.def("philox_word", &philox_word, py::arg("seed"), py::arg("position"), py::arg("draw"), py::arg("index"));
  m.def("sample", &sample_row, py::arg("logits").noconvert(), py::kw_only(), py::arg("temperature") = 0.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f,
        py::arg("min_p") = 0.0f, py::arg("seed") = 0, py::arg("position") = 0, py::arg("draw") = 0, py::arg("mask") = py::none(),
        "The token of one row, -1 where there is none.");
  py::class_<PackedMatrix>(m, "PackedMatrix")
      .def(py::init<const py::handle&, bool, int>(), py::arg("part"), py::kw_only(), py::arg("precise") = false, py::arg("threads") = 1)
      .def("multiply", &PackedMatrix::multiply, py::arg("x").noconvert(), py::kw_only(), py::arg("out") = py::none(), "x f32 [rows, columns] -> f32 [rows, N]")
      .def("dense", &PackedMatrix::dense, "What the packed matrix means, f32 [N, columns].")
      .def_property_readonly("nbytes", &PackedMatrix::bytes);
}

}  // namespace cacheir
