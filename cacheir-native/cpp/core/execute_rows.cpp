// Instructions that go row by row: embedding, rope tables, norms, rope, elementwise, gathers, sampling.
#include <cmath>
#include <cstring>

#include "core/executor.h"

namespace cacheir {

void Executor::run(const Instruction& i) {
  switch (i.opcode) {
    case Opcode::embedding: return embedding(i);
    case Opcode::rope_table: return rope_table(i);
    case Opcode::rms_norm:
    case Opcode::add_rms_norm: return norm(i);
    case Opcode::linear: return linear(i);
    case Opcode::qkv: return qkv(i);
    case Opcode::rope: return rope(i);
    case Opcode::kv_append: return kv_append(i);
    case Opcode::attention: return attention(i);
    case Opcode::swiglu: return swiglu(i);
    case Opcode::gather_rows: return gather_rows(i);
    case Opcode::head_argmax: return head_argmax(i);
    case Opcode::sample: return sample(i);
    default: return elementwise(i);
  }
}

void Executor::embedding(const Instruction& i) {
  const Weight& w = r.weights_[static_cast<size_t>(i.table)];
  for (int t = worker; t < rows; t += workers()) {
    int row = r.step_.tokens[static_cast<size_t>(t)];
    for (const Matrix& m : w.parts) {
      if (row < m.rows) {
        // A row has a few bytes in every line of its panel.
        const uint8_t* panel = m.data + static_cast<size_t>(row / kPanelRows) * m.stride;
        for (size_t j = 0; j < m.stride; j += 64) __builtin_prefetch(panel + j);
        unpack_row(m, row, at(i.out) + static_cast<size_t>(t) * static_cast<size_t>(w.columns));
        break;
      }
      row -= m.rows;
    }
  }
  // Tables of angles need nothing of this: the other worker makes them meanwhile.
  if (next < end && next->opcode == Opcode::rope_table) return;
  r.pool_.barrier();
}

// The angle is rounded to f32 before its cosine is taken, as the definition says.
void Executor::rope_table(const Instruction& i) {
  const int half = static_cast<int>(i.dims / 2);
  const float* frequencies = values(i.inverse_frequencies);
  const float magnitude = static_cast<float>(i.magnitude);
  for (int t = workers() - 1 - worker; t < rows; t += workers()) {
    const float position = static_cast<float>(r.step_.positions[static_cast<size_t>(t)]);
    float* cosines = at(i.cos) + static_cast<size_t>(t) * static_cast<size_t>(half);
    float* sines = at(i.sin) + static_cast<size_t>(t) * static_cast<size_t>(half);
    for (int j = 0; j < half; ++j) {
      const double angle = position * frequencies[j];
      cosines[j] = static_cast<float>(std::cos(angle)) * magnitude;
      sines[j] = static_cast<float>(std::sin(angle)) * magnitude;
    }
  }
  r.pool_.barrier();
}

void Executor::norm(const Instruction& i) {
  const int n = count(i) * static_cast<int>(std::max<int64_t>(i.heads, 1)), width = static_cast<int>(i.width);
  for (int t = worker; t < n; t += workers()) {
    const size_t offset = static_cast<size_t>(t) * static_cast<size_t>(width);
    const float* x = at(i.x) + offset;
    if (i.opcode == Opcode::add_rms_norm) {
      r.table_.elementwise(kAdd, x, at(i.residual) + offset, at(i.sum) + offset, static_cast<size_t>(width));
      x = at(i.sum) + offset;
    }
    r.table_.rms_norm(x, values(i.norm), static_cast<float>(i.eps), at(i.out) + offset, width);
  }
  r.pool_.barrier();
}

void Executor::rope(const Instruction& i) {
  const Rope how{nullptr, nullptr, static_cast<int>(i.dims), static_cast<int>(i.interleaved), static_cast<int>(i.heads), static_cast<int>(i.head_dim)};
  const size_t width = static_cast<size_t>(i.heads * i.head_dim), half = static_cast<size_t>(i.dims / 2);
  for (int t = worker; t < rows; t += workers()) {
    const size_t row = static_cast<size_t>(t);
    r.table_.rope(at(i.x) + row * width, at(i.out) + row * width, at(i.cos) + row * half, at(i.sin) + row * half, &how);
  }
  r.pool_.barrier();
}

void Executor::kv_append(const Instruction& i) {
  const KvPool& pool = *r.pools_[static_cast<size_t>(i.group)];
  const KvLayer kv = pool.layer(static_cast<int>(i.layer));
  const int k = workers();
  const AppendKv task{&kv, at(i.k), at(i.v), static_cast<size_t>(pool.heads() * pool.head_dim()), pool.heads(),
                      r.step_.groups[static_cast<size_t>(i.group)].slots.data(), rows * worker / k, rows * (worker + 1) / k};
  r.table_.append_kv(&task);
  r.pool_.barrier();
}

void Executor::elementwise(const Instruction& i) {
  const int op = i.opcode == Opcode::add ? kAdd : i.opcode == Opcode::multiply ? kMultiply : i.opcode == Opcode::silu ? kSilu
               : i.opcode == Opcode::silu_multiply ? kSiluMultiply : kCopy;
  const int n = count(i);
  for (int t = worker; t < n; t += workers()) {
    const size_t offset = static_cast<size_t>(t) * static_cast<size_t>(i.width);
    const float* other = i.residual == kNone ? nullptr : at(i.residual) + offset;
    r.table_.elementwise(op, at(i.x) + offset, other, at(i.out) + offset, static_cast<size_t>(i.width));
  }
  r.pool_.barrier();
}

void Executor::gather_rows(const Instruction& i) {
  const size_t width = static_cast<size_t>(i.width);
  const int n = static_cast<int>(r.step_.head_rows.size());
  for (int t = worker; t < n; t += workers()) {
    const size_t from = static_cast<size_t>(r.step_.head_rows[static_cast<size_t>(t)]);
    std::memcpy(at(i.out) + static_cast<size_t>(t) * width, at(i.x) + from * width, width * 4);
  }
  r.pool_.barrier();
}

void Executor::sample(const Instruction& i) {
  if (worker == 0) r.head_tokens_.resize(static_cast<size_t>(rows));
  r.pool_.barrier();
  const size_t words = static_cast<size_t>((r.options_.vocabulary + 31) / 32);
  for (int t = worker; t < rows; t += workers()) {
    const size_t owner = static_cast<size_t>(r.step_.owners[static_cast<size_t>(r.picked_[static_cast<size_t>(t)])]);
    const StepRow& row = r.step_.rows[owner];
    const uint32_t* mask = row.masked ? r.step_.masks.data() + owner * words : nullptr;
    const float* logits = at(i.x) + static_cast<size_t>(t) * static_cast<size_t>(i.width);
    const int32_t last = row.position + row.tokens - 1;
    r.head_tokens_[static_cast<size_t>(t)] = r.samplers_[static_cast<size_t>(worker)].sample(logits, row.sampling, last, row.draw, mask);
  }
  r.pool_.barrier();
}

}  // namespace cacheir
