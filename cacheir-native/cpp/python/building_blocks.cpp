// rms_norm, silu_multiply, a packed matrix with its product, attention over a pool, sampling: one call each.
#include "python/building_blocks.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>

#include "core/dispatch.h"
#include "core/sampling.h"
#include "python/arguments.h"

namespace py = pybind11;

namespace cacheir {
namespace {

using Floats = py::array_t<float, py::array::c_style>;

py::array_t<float> like(const Floats& x) { return py::array_t<float>(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim())); }

Floats rms_norm(const Floats& x, const Floats& weight, float eps) {
  const py::ssize_t width = x.ndim() ? x.shape(x.ndim() - 1) : 0;
  if (width < 1 || weight.size() != width) throw std::invalid_argument("weight must have one element for each column of x");
  Floats out = like(x);
  const float *from = x.data(), *w = weight.data();
  float* to = out.mutable_data();
  const py::ssize_t rows = x.size() / width;
  py::gil_scoped_release release;
  for (py::ssize_t r = 0; r < rows; ++r) chosen_table().rms_norm(from + r * width, w, eps, to + r * width, static_cast<int>(width));
  return out;
}

Floats silu_multiply(const Floats& gate, const Floats& up) {
  if (gate.size() != up.size()) throw std::invalid_argument("gate and up must be of one size");
  Floats out = like(gate);
  const float *a = gate.data(), *b = up.data();
  float* to = out.mutable_data();
  const size_t count = static_cast<size_t>(gate.size());
  py::gil_scoped_release release;
  chosen_table().elementwise(kSiluMultiply, a, b, to, count);
  return out;
}

// A packed matrix and the threads that multiply by it.
class PackedMatrix {
 public:
  PackedMatrix(const py::handle& part, bool precise, int threads) : pool_(threads, false) {
    const GivenMatrix given = matrix_of(part);
    const Panel format = panel_of(given.matrix.format, precise, table_.bf16_dot != 0);
    kind_ = activations_of(format, precise, table_.bf16_dot != 0);
    const int panels = (given.matrix.rows + kPanelRows - 1) / kPanelRows;
    const size_t stride = panel_layout(format, given.matrix.columns).bytes;
    memory_ = HugeMemory(stride * static_cast<size_t>(panels));
    matrix_ = {format, memory_.data(), stride, given.matrix.rows, given.matrix.columns, panels};
    pack_panels(given.matrix, matrix_, 0, panels);
  }

  // x [rows, columns] -> [rows, N]
  Floats multiply(const Floats& x) {
    if (x.ndim() != 2 || x.shape(1) != matrix_.columns) throw std::invalid_argument("x must be [rows, " + std::to_string(matrix_.columns) + "]");
    const int rows = static_cast<int>(x.shape(0));
    Floats out({x.shape(0), static_cast<py::ssize_t>(matrix_.rows)});
    if (rows == 0) return out;
    HugeArena arena;
    ActivationBuffer buffer;
    buffer.reserve(arena, static_cast<size_t>(rows), static_cast<size_t>(matrix_.columns));
    std::vector<float> scratch(static_cast<size_t>(matrix_.columns) + 64);
    Activations a = buffer.view(kind_, rows, matrix_.columns);
    const PackRows pack{x.data(), static_cast<size_t>(matrix_.columns), nullptr, 0, scratch.data(), &a, 0, rows};
    const Destination to{out.mutable_data(), static_cast<size_t>(matrix_.rows), nullptr, nullptr, 0};
    py::gil_scoped_release release;
    table_.pack_rows(&pack);
    Job job{this, &a, &to};
    pool_.run(work, &job);
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
    const int n = job.self->pool_.threads();
    job.self->table_.matmul(&m, job.x, m.panels * worker / n, m.panels * (worker + 1) / n, job.to);
  }

  const KernelTable& table_ = chosen_table();
  ThreadPool pool_;
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
  m.def("rms_norm", &rms_norm, py::arg("x").noconvert(), py::arg("weight").noconvert(), py::arg("eps"), "x [..., H], weight [H] -> like x");
  m.def("silu_multiply", &silu_multiply, py::arg("gate").noconvert(), py::arg("up").noconvert(), "silu(gate) * up");
  m.def("philox_word", &philox_word, py::arg("seed"), py::arg("position"), py::arg("draw"), py::arg("index"));
  m.def("sample", &sample_row, py::arg("logits").noconvert(), py::kw_only(), py::arg("temperature") = 0.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f,
        py::arg("min_p") = 0.0f, py::arg("seed") = 0, py::arg("position") = 0, py::arg("draw") = 0, py::arg("mask") = py::none(),
        "The token of one row, -1 where there is none.");
  py::class_<PackedMatrix>(m, "PackedMatrix")
      .def(py::init<const py::handle&, bool, int>(), py::arg("part"), py::kw_only(), py::arg("precise") = false, py::arg("threads") = 1)
      .def("multiply", &PackedMatrix::multiply, py::arg("x").noconvert(), "x f32 [rows, columns] -> f32 [rows, N]")
      .def("dense", &PackedMatrix::dense, "What the packed matrix means, f32 [N, columns].")
      .def_property_readonly("nbytes", &PackedMatrix::bytes);
}

}  // namespace cacheir
