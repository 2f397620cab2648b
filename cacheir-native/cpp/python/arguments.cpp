// Reads Python objects; nothing here runs without the GIL.
#include "arguments.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/opcodes.h"
#include "core/stored_blocks.h"

namespace py = pybind11;

namespace cacheir {
namespace {

constexpr int kMostSize = 1 << 28;

void set_operand(Instruction& i, const std::string& name, const py::handle& value) {
  struct Whole { const char* name; int64_t Instruction::*field; };
  static constexpr Whole whole[] = {
      {"x", &Instruction::x}, {"residual", &Instruction::residual}, {"out", &Instruction::out}, {"sum", &Instruction::sum},
      {"q", &Instruction::q}, {"k", &Instruction::k}, {"v", &Instruction::v}, {"cos", &Instruction::cos}, {"sin", &Instruction::sin},
      {"weight", &Instruction::weight}, {"norm", &Instruction::norm}, {"bias", &Instruction::bias}, {"table", &Instruction::table},
      {"inverse_frequencies", &Instruction::inverse_frequencies}, {"group", &Instruction::group}, {"layer", &Instruction::layer},
      {"heads", &Instruction::heads}, {"kv_heads", &Instruction::kv_heads}, {"head_dim", &Instruction::head_dim},
      {"dims", &Instruction::dims}, {"interleaved", &Instruction::interleaved}, {"window", &Instruction::window}, {"sinks", &Instruction::sinks}, {"only_next", &Instruction::only_next},
      {"width", &Instruction::width}, {"head_rows", &Instruction::head_rows}};
  struct Real { const char* name; double Instruction::*field; };
  static constexpr Real real[] = {{"eps", &Instruction::eps}, {"scale", &Instruction::scale}, {"magnitude", &Instruction::magnitude}, {"softcap", &Instruction::softcap}};
  for (const Whole& w : whole) {
    if (name == w.name) {
      i.*w.field = value.cast<int64_t>();
      return;
    }
  }
  for (const Real& r : real) {
    if (name == r.name) {
      i.*r.field = value.cast<double>();
      return;
    }
  }
  throw std::invalid_argument("'" + name + "' is no operand of an instruction");
}

Want want_of(const std::string& name) {
  static constexpr const char* names[] = {"nothing", "token", "logprobs", "logits", "hidden"};
  for (int i = 0; i < 5; ++i)
    if (name == names[i]) return static_cast<Want>(i);
  throw std::invalid_argument("a row wants nothing, token, logprobs, logits or hidden, not '" + name + "'");
}

Sampling sampling_of(const py::handle& given) {
  Sampling s;
  s.temperature = given.attr("temperature").cast<float>();
  s.top_k = given.attr("top_k").cast<int32_t>();
  s.top_p = given.attr("top_p").cast<float>();
  s.min_p = given.attr("min_p").cast<float>();
  const py::object seed = given.attr("seed");
  s.seed = seed.is_none() ? 0 : seed.cast<uint64_t>();
  return s;
}

void add_mask(Runner& runner, StepRow& row, const py::object& mask) {
  Step& step = runner.step();
  const size_t words = static_cast<size_t>((runner.options().vocabulary + 31) / 32);
  if (mask.is_none()) {
    step.masks.insert(step.masks.end(), words, 0xffffffffu);
    return;
  }
  const auto array = mask.cast<py::array_t<uint32_t, py::array::c_style>>();
  if (static_cast<size_t>(array.size()) != words) throw std::invalid_argument("a mask must have " + std::to_string(words) + " words");
  step.masks.insert(step.masks.end(), array.data(), array.data() + words);
  row.masked = true;
}

void add_pages(Runner& runner, const std::vector<py::tuple>& tables) {
  Step& step = runner.step();
  for (size_t g = 0; g < runner.groups(); ++g) {
    GroupInputs& group = step.groups[g];
    size_t width = 1;
    for (const py::tuple& pages : tables) {
      if (pages.size() != runner.groups()) throw std::invalid_argument("a row needs pages for each of " + std::to_string(runner.groups()) + " KV groups");
      width = std::max(width, py::len(pages[g]));
    }
    group.width = static_cast<int32_t>(width);
    for (const py::tuple& pages : tables) {
      const size_t end = group.page_table.size() + width;
      for (const py::handle page : pages[g]) group.page_table.push_back(page.cast<int32_t>());
      group.page_table.resize(end, -1);
    }
  }
}

}  // namespace

GivenMatrix matrix_of(const py::handle& given) {
  const auto [name, array, rows, columns] = given.cast<std::tuple<std::string, py::array, int64_t, int64_t>>();
  const auto format = stored_format(name);
  if (!format) throw std::invalid_argument("'" + name + "' is no stored format");
  if (rows < 1 || columns < 1 || rows > kMostSize || columns > kMostSize) throw std::invalid_argument("a matrix must have from 1 to 2^28 rows and columns");
  if (columns % block_columns(*format))
    throw std::invalid_argument("a " + name + " matrix must have a multiple of " + std::to_string(block_columns(*format)) + " columns, not " + std::to_string(columns));
  const size_t wanted = static_cast<size_t>(rows) * static_cast<size_t>(columns / block_columns(*format)) * block_bytes(*format);
  if (static_cast<size_t>(array.nbytes()) != wanted || !(array.flags() & py::array::c_style))
    throw std::invalid_argument("a " + name + " matrix [" + std::to_string(rows) + ", " + std::to_string(columns) + "] takes a C-contiguous array of " +
                                std::to_string(wanted) + " bytes, not " + std::to_string(array.nbytes()));
  return {{*format, static_cast<const uint8_t*>(array.data()), static_cast<int>(rows), static_cast<int>(columns)}, array};
}

Instruction instruction_of(const std::string& opcode, const py::dict& operands) {
  const auto found = opcode_named(opcode);
  if (!found) throw std::invalid_argument("'" + opcode + "' is no opcode");
  Instruction i;
  i.opcode = *found;
  for (const auto& [name, value] : operands) set_operand(i, name.cast<std::string>(), value);
  return i;
}

void stage_rows(Runner& runner, const py::sequence& rows) {
  runner.clear_step();
  Step& step = runner.step();
  std::vector<py::tuple> tables;
  int32_t start = 0;
  for (const py::handle given : rows) {
    StepRow row;
    row.slot = given.attr("slot").cast<int32_t>();
    row.position = given.attr("position").cast<int32_t>();
    row.draw = given.attr("draw").cast<int64_t>();
    row.want = want_of(given.attr("want").cast<std::string>());
    Slot& slot = runner.slot(row.slot);
    if (const py::object sampling = given.attr("sampling"); !sampling.is_none()) slot.sampling = sampling_of(sampling);
    row.sampling = slot.sampling;
    const py::tuple tokens = given.attr("tokens");
    for (const py::handle token : tokens) step.tokens.push_back(token.cast<int32_t>());
    if (tokens.empty()) step.tokens.push_back(slot.last_token);
    row.tokens = static_cast<int32_t>(std::max<size_t>(1, tokens.size()));
    row.first_head_row = static_cast<int32_t>(step.head_rows.size());
    if (row.want != Want::nothing) {
      const py::tuple at = given.attr("want_at");
      if (at.empty()) step.head_rows.push_back(start + row.tokens - 1);
      for (const py::handle index : at) {
        const int32_t i = index.cast<int32_t>();
        if (i < 0 || i >= row.tokens) throw std::invalid_argument("want_at holds " + std::to_string(i) + ", which is no index into the row's tokens");
        step.head_rows.push_back(start + i);
      }
    }
    row.head_rows = static_cast<int32_t>(step.head_rows.size()) - row.first_head_row;
    step.owners.resize(step.head_rows.size(), static_cast<int32_t>(step.rows.size()));
    add_mask(runner, row, given.attr("mask"));
    tables.push_back(given.attr("pages"));
    start += row.tokens;
    step.rows.push_back(row);
  }
  add_pages(runner, tables);
}

KvFormat kv_format(const std::string& name) {
  static constexpr const char* names[] = {"f32", "f16", "bf16", "int8"};
  for (int i = 0; i < 4; ++i)
    if (name == names[i]) return static_cast<KvFormat>(i);
  throw std::invalid_argument("KV is stored as f32, f16, bf16 or int8, not '" + name + "'");
}

}  // namespace cacheir
