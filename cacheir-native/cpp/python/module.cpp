// The Python module cacheir_native._cacheir_native; docs/native.md describes it.
#include <pybind11/stl.h>

#include "arguments.h"
#include "core/dispatch.h"
#include "python/building_blocks.h"

namespace py = pybind11;
using namespace cacheir;

namespace {

struct StepOutput {
  py::array_t<int32_t> tokens;
  py::array_t<bool> failed;
  py::object logits, hidden;
};

// Buffers for the rows of logits and hidden states that a step will give.
struct Buffers {
  py::object logits = py::none(), hidden = py::none();
  StepResult result;

  explicit Buffers(Runner& runner) {
    py::ssize_t logit_rows = 0, hidden_rows = 0;
    for (const StepRow& row : runner.step().rows) {
      if (row.want == Want::logits || row.want == Want::logprobs) logit_rows += row.head_rows;
      if (row.want == Want::hidden) hidden_rows += row.head_rows;
    }
    if (logit_rows) {
      py::array_t<float> array({logit_rows, static_cast<py::ssize_t>(runner.options().vocabulary)});
      result.logits = array.mutable_data();
      logits = array;
    }
    if (hidden_rows) {
      py::array_t<float> array({hidden_rows, static_cast<py::ssize_t>(runner.hidden_width())});
      result.hidden = array.mutable_data();
      hidden = array;
    }
  }

  StepOutput output() const {
    StepOutput out;
    out.tokens = py::array_t<int32_t>(static_cast<py::ssize_t>(result.tokens.size()), result.tokens.data());
    out.failed = py::array_t<bool>(static_cast<py::ssize_t>(result.failed.size()));
    std::copy(result.failed.begin(), result.failed.end(), out.failed.mutable_data());
    out.logits = logits;
    out.hidden = hidden;
    return out;
  }
};

StepOutput heads(Runner& runner) {
  Buffers buffers(runner);
  {
    py::gil_scoped_release release;
    runner.run_heads(buffers.result);
  }
  return buffers.output();
}

// Until no step is under way: whoever changes what a step reads, or reads what it writes, comes here first.
void settle(Runner& runner) {
  if (!runner.step_thread().busy()) return;  // who lets the GIL go for nothing may wait long to have it back
  py::gil_scoped_release release;
  runner.step_thread().settle();
}

void begin(Runner& runner, const std::string& mode, const py::sequence& rows) {
  settle(runner);
  stage_rows(runner, rows);
  runner.begin(mode);
}

StepOutput step(Runner& runner, const std::string& mode, const py::sequence& rows) {
  begin(runner, mode, rows);
  Buffers buffers(runner);
  {
    py::gil_scoped_release release;
    runner.run_main();
    runner.run_heads(buffers.result);
  }
  return buffers.output();
}

// A step that runs while Python goes on; it holds the step's buffers, so it waits before it goes.
class Flight {
 public:
  Flight(py::object owner, const std::string& mode, const py::sequence& rows) : owner_(std::move(owner)), runner_(owner_.cast<Runner&>()) {
    begin(runner_, mode, rows);
    buffers_ = std::make_unique<Buffers>(runner_);
    runner_.step_thread().start([this] {
      runner_.run_main();
      runner_.run_heads(buffers_->result);
    });
  }
  ~Flight() {
    if (!landed_) runner_.step_thread().settle();  // it needs no GIL, so it ends though this thread has it
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  StepOutput wait() {
    if (landed_) throw std::invalid_argument("the step was waited for before");
    landed_ = true;
    {
      py::gil_scoped_release release;
      runner_.step_thread().wait();
    }
    return buffers_->output();
  }

 private:
  py::object owner_;
  Runner& runner_;
  std::unique_ptr<Buffers> buffers_;
  bool landed_ = false;
};

py::array_t<int32_t> run_ahead(Runner& runner, const py::sequence& rows, int n, double max_ms) {
  if (n < 1 || n > 1 << 16) throw std::invalid_argument("run_ahead takes from 1 to 65536 steps");
  begin(runner, "decode", rows);
  const size_t batch = runner.step().rows.size();
  std::vector<int32_t> tokens(static_cast<size_t>(n) * batch);
  int done;
  {
    py::gil_scoped_release release;
    done = runner.run_ahead(n, max_ms * 1e-3, tokens.data());
  }
  py::array_t<int32_t> out({static_cast<py::ssize_t>(done), static_cast<py::ssize_t>(batch)});
  std::copy_n(tokens.data(), static_cast<size_t>(done) * batch, out.mutable_data());
  return out;
}

py::tuple measure(Runner& runner, const std::string& mode, const py::sequence& rows) {
  std::vector<Timing> timings;
  timings.reserve(4096);
  runner.timings = &timings;
  try {
    StepOutput out = step(runner, mode, rows);
    runner.timings = nullptr;
    py::list list;
    for (const Timing& t : timings) list.append(py::make_tuple(t.section, t.instruction, t.seconds));
    return py::make_tuple(out, list);
  } catch (...) {
    runner.timings = nullptr;
    throw;
  }
}

Screening screening_named(const std::string& name) {
  if (name == "off") return Screening::off;
  if (name == "auto") return Screening::automatic;
  if (name == "always") return Screening::always;
  throw std::invalid_argument("screen is auto, off or always, not '" + name + "'");
}

bool is_pair(const std::string& kind) {
  if (kind != "stack" && kind != "pair") throw std::invalid_argument("a weight is a stack or a pair, not '" + kind + "'");
  return kind == "pair";
}

int64_t add_weight(Runner& runner, const py::sequence& parts, const std::string& kind) {
  const bool pair = is_pair(kind);
  std::vector<GivenMatrix> given;
  std::vector<StoredMatrix> matrices;
  for (const py::handle part : parts) given.push_back(matrix_of(part));
  for (const GivenMatrix& g : given) matrices.push_back(g.matrix);
  py::gil_scoped_release release;
  return runner.add_weight(matrices, pair);
}

// Several weights in one stretch without the GIL: a thread that packs takes it once for all of them.
std::vector<int64_t> add_weights(Runner& runner, const py::sequence& weights) {
  std::vector<GivenMatrix> given;
  std::vector<GivenWeight> all;
  for (const py::handle weight : weights) {
    const auto pair = weight.cast<py::tuple>();
    if (pair.size() != 2) throw std::invalid_argument("a weight is given as its parts and its kind");
    all.push_back({{}, is_pair(pair[1].cast<std::string>())});
    for (const py::handle part : pair[0].cast<py::sequence>()) {
      given.push_back(matrix_of(part));
      all.back().matrices.push_back(given.back().matrix);
    }
  }
  py::gil_scoped_release release;
  return runner.add_weights(all);
}

void check_page(const KvPool& pool, int page) {
  if (page < 0 || page >= pool.pages()) throw std::invalid_argument("the pool has no page " + std::to_string(page));
}

py::array_t<float> read_pages(Runner& runner, int group, const std::vector<int>& pages) {
  settle(runner);
  const KvPool& pool = runner.pool(group);
  py::array_t<float> out({static_cast<py::ssize_t>(pages.size()), static_cast<py::ssize_t>(pool.layers()), py::ssize_t{2},
                          static_cast<py::ssize_t>(pool.heads()), static_cast<py::ssize_t>(pool.page_tokens()), static_cast<py::ssize_t>(pool.head_dim())});
  for (size_t i = 0; i < pages.size(); ++i) {
    check_page(pool, pages[i]);
    pool.read_page(pages[i], out.mutable_data(static_cast<py::ssize_t>(i)));
  }
  return out;
}

void write_pages(Runner& runner, int group, const std::vector<int>& pages, const py::array_t<float, py::array::c_style | py::array::forcecast>& data) {
  settle(runner);
  KvPool& pool = runner.pool(group);
  const py::ssize_t part = py::ssize_t{2} * pool.layers() * pool.heads() * pool.page_tokens() * pool.head_dim();
  if (data.size() != part * static_cast<py::ssize_t>(pages.size())) throw std::invalid_argument("the data is not of the size that read_pages gives for these pages");
  for (size_t i = 0; i < pages.size(); ++i) {
    check_page(pool, pages[i]);
    pool.write_page(pages[i], data.data() + part * static_cast<py::ssize_t>(i));
  }
}

py::dict inputs(Runner& runner) {
  py::dict out;
  const Step& step = runner.step();
  const auto add = [&](const std::string& name, const std::vector<int32_t>& list) { out[py::str(name)] = py::array_t<int32_t>(static_cast<py::ssize_t>(list.size()), list.data()); };
  add("tokens", step.tokens);
  add("positions", step.positions);
  add("row_starts", step.row_starts);
  add("head_rows", step.head_rows);
  for (size_t g = 0; g < step.groups.size(); ++g) {
    const std::string suffix = g ? "." + std::to_string(g) : "";
    add("slots" + suffix, step.groups[g].slots);
    add("lengths" + suffix, step.groups[g].lengths);
    const py::ssize_t width = step.groups[g].width;
    out[py::str("page_table" + suffix)] = py::array_t<int32_t>({static_cast<py::ssize_t>(step.rows.size()), width}, step.groups[g].page_table.data());
  }
  return out;
}

}  // namespace

PYBIND11_MODULE(_cacheir_native, m) {
  m.doc() = "C++ runner and kernels of cacheir-native; see docs/native.md";
  m.def("isa", [] { return std::string(chosen_table().name); }, "The instruction set in use.");
  m.def("supported_isas", [] {
    py::list names;
    for (const KernelTable* table : supported_tables()) names.append(table->name);
    return py::tuple(names);
  }, "The instruction sets that this machine runs, best first.");
  m.def("default_threads", &default_threads, "CACHEIR_THREADS, else what the process may use.");
  add_building_blocks(m);

  py::class_<StepOutput>(m, "StepOutput")
      .def_readonly("tokens", &StepOutput::tokens)
      .def_readonly("failed", &StepOutput::failed)
      .def_readonly("logits", &StepOutput::logits)
      .def_readonly("hidden", &StepOutput::hidden);

  py::class_<Flight>(m, "Flight").def("wait", &Flight::wait, "The step's output, once it is done.");

  py::class_<Runner>(m, "Runner")
      .def(py::init([](int max_rows, int max_tokens, int max_seq, int vocabulary, int threads, bool pin, bool precise, const std::string& screen) {
             return std::make_unique<Runner>(RunnerOptions{max_rows, max_tokens, max_seq, vocabulary, threads, pin, precise, screening_named(screen)});
           }),
           py::kw_only(), py::arg("max_rows"), py::arg("max_tokens"), py::arg("max_seq"), py::arg("vocabulary"), py::arg("threads") = 0,
           py::arg("pin") = false, py::arg("precise") = false, py::arg("screen") = "auto")
      .def("reserve", &Runner::reserve, py::arg("bytes"), "A place of so many bytes in the arena.")
      .def("arena", [](py::object self) {
             Runner& r = self.cast<Runner&>();
             return py::array_t<uint8_t>(static_cast<py::ssize_t>(r.arena_bytes()), r.arena(), self);
           }, "uint8 view of the arena, after finish().")
      .def("add_weight", &add_weight, py::arg("parts"), py::arg("kind") = "stack")
      .def("add_weights", &add_weights, py::arg("weights"), "Handles of several weights, (parts, kind) each.")
      .def("add_vector", [](Runner& r, const py::array_t<float, py::array::c_style | py::array::forcecast>& v) { return r.add_vector(v.data(), static_cast<size_t>(v.size())); }, py::arg("values"))
      .def("open_pool", [](Runner& r, int group, int layers, int heads, int head_dim, int pages, int page_tokens, const std::string& dtype) {
             settle(r);
             r.open_pool(group, kv_format(dtype), layers, heads, head_dim, pages, page_tokens);
           }, py::arg("group"), py::kw_only(), py::arg("layers"), py::arg("heads"), py::arg("head_dim"), py::arg("pages"), py::arg("page_tokens") = 16, py::arg("dtype") = "f16")
      .def("emit", [](Runner& r, const std::string& section, const std::string& opcode, const py::kwargs& operands) {
             return r.emit(section, instruction_of(opcode, operands));
           }, py::arg("section"), py::arg("opcode"))
      .def("set_output", [](Runner& r, const std::string& s, int64_t place, int width) { r.set_output(s, {place, width, 0}); }, py::arg("section"), py::arg("place"), py::arg("width"))
      .def("set_input", [](Runner& r, const std::string& s, int64_t place, int width, int rows) { r.set_input(s, {place, width, rows}); }, py::arg("section"), py::arg("place"), py::arg("width"), py::arg("rows"))
      .def("set_logits", [](Runner& r, const std::string& s, int64_t place, int width) { r.set_logits(s, {place, width, 0}); }, py::arg("section"), py::arg("place"), py::arg("width"))
      .def("set_stop_ids", [](Runner& r, int slot, std::vector<int32_t> ids) { r.slot(slot).stop_ids = std::move(ids); }, py::arg("slot"), py::arg("ids"))
      .def("finish", &Runner::finish)
      .def("step", &step, py::arg("mode"), py::arg("rows"))
      .def("submit", [](const py::object& self, const std::string& mode, const py::sequence& rows) { return std::make_unique<Flight>(self, mode, rows); },
           py::arg("mode"), py::arg("rows"), "A step that runs on a thread of its own.")
      .def("run_ahead", &run_ahead, py::arg("rows"), py::arg("n"), py::arg("max_ms") = 50.0)
      .def("measure", &measure, py::arg("mode"), py::arg("rows"))
      .def("begin", &begin, py::arg("mode"), py::arg("rows"))
      .def("run", &Runner::run, py::arg("section"), py::arg("first"), py::arg("last"), py::call_guard<py::gil_scoped_release>())
      .def("heads", &heads)
      .def("inputs", &inputs)
      .def("copy_pages", [](Runner& r, int group, const std::vector<std::pair<int, int>>& pairs) {
             settle(r);
             KvPool& pool = r.pool(group);
             for (const auto& [source, target] : pairs) {
               check_page(pool, source);
               check_page(pool, target);
               pool.copy_page(source, target);
             }
           }, py::arg("group"), py::arg("pairs"))
      .def("read_pages", &read_pages, py::arg("group"), py::arg("pages"))
      .def("write_pages", &write_pages, py::arg("group"), py::arg("pages"), py::arg("data"))
      .def("memory", [](Runner& r) {
             py::dict out;
             size_t kv = 0;
             for (size_t g = 0; g < r.groups(); ++g) kv += r.pool(static_cast<int>(g)).bytes();
             out["weights"] = r.weight_bytes();
             out["kv"] = kv;
             out["arena"] = r.arena_bytes();
             out["workspace"] = r.workspace_bytes();
             return out;
           })
      .def("screening", [](Runner& r) {
             settle(r);
             py::list out;
             for (const auto& head : r.screened_heads()) {
               const ScreenCounts& counts = head->counts();
               py::dict one;
               one["bytes"] = head->bytes();
               one["steps"] = counts.steps;
               one["too_many"] = counts.too_many;
               one["panels"] = counts.panels;
               one["saved_bytes"] = counts.saved_bytes;
               one["ready"] = counts.ready;
               one["given_up"] = counts.given_up;
               out.append(one);
             }
             return out;
           }, "What each screened head holds and did; docs/native.md.")
      .def_property_readonly("threads", &Runner::threads)
      .def_property_readonly("isa", [](const Runner& r) { return std::string(r.table().name); });
}
