#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include <stdexcept>
#include <utility>

#include "gemm.hpp"

namespace nb = nanobind;

namespace headway {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// Quantised activations that own their memory.
struct Activations {
  QuantBuffer buffer;
  QuantActs view;

  Activations(int64_t tokens, int64_t cols)
      : buffer(tokens, cols), view(buffer.view(tokens, cols)) {}
};

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

int64_t length(const Bytes& bytes) { return static_cast<int64_t>(bytes.shape(0)); }

PackedMatrix pack_stacked(WeightType type, int64_t cols, const std::vector<Bytes>& sources) {
  const auto row = static_cast<int64_t>(gguf_row_bytes(type, cols));
  std::vector<RowSource> rows;
  for (const Bytes& bytes : sources) {
    require(length(bytes) % row == 0, "bytes must be whole rows");
    rows.push_back({bytes.data(), length(bytes) / row});
  }
  return pack(type, cols, rows);
}

PackedMatrix pack_gate_up(WeightType type, int64_t cols, const Bytes& gate, const Bytes& up) {
  const auto row = static_cast<int64_t>(gguf_row_bytes(type, cols));
  require(length(gate) == length(up) && length(gate) % row == 0, "gate and up must be whole rows");
  return pack_interleaved(type, length(gate) / row, cols, gate.data(), up.data());
}

template <typename T>
Array<T> copy(const T* from, int64_t rows, int64_t cols) {
  const auto count = static_cast<size_t>(rows * cols);
  T* data = new T[count];
  std::copy(from, from + count, data);
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Array<T>(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, owner);
}

// [tokens, groups * width] from the group-major runs of the activations.
template <typename T>
Array<T> rows_of(const Activations& acts, const T* run, int64_t width) {
  const QuantActs& view = acts.view;
  std::vector<T> rows;
  for (int64_t t = 0; t < view.tokens; ++t) {
    for (int64_t g = 0; g < view.groups(); ++g) {
      const T* from = run + view.at(t, g) * width;
      rows.insert(rows.end(), from, from + width);
    }
  }
  return copy(rows.data(), view.tokens, view.groups() * width);
}

Array<float> dequantize(WeightType type, int64_t cols, const Bytes& bytes) {
  const auto row = static_cast<int64_t>(gguf_row_bytes(type, cols));
  require(length(bytes) % row == 0, "bytes must be whole rows");
  const int64_t rows = length(bytes) / row;
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    dequantize_row(type, bytes.data() + r * row, cols, out.data() + r * cols);
  }
  return copy(out.data(), rows, cols);
}

Array<float> dequantize_packed(const PackedMatrix& matrix) {
  std::vector<float> out(static_cast<size_t>(matrix.rows() * matrix.cols()));
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    dequantize_row(matrix, r, out.data() + r * matrix.cols());
  }
  return copy(out.data(), matrix.rows(), matrix.cols());
}

Activations quantize(Isa isa, const FloatRows& x) {
  const auto tokens = static_cast<int64_t>(x.shape(0));
  const auto cols = static_cast<int64_t>(x.shape(1));
  Activations acts(tokens, cols);
  for (int64_t t = 0; t < tokens; ++t) {
    kernels(isa).quantize(x.data() + t * cols, acts.view, t, {0, acts.view.groups()});
  }
  return acts;
}

Activations rmsnorm(Isa isa, const FloatRows& x, const Floats& weight, float eps) {
  const auto tokens = static_cast<int64_t>(x.shape(0));
  const auto cols = static_cast<int64_t>(x.shape(1));
  require(weight.shape(0) == x.shape(1), "one norm weight a column");
  Activations acts(tokens, cols);
  for (int64_t t = 0; t < tokens; ++t) {
    kernels(isa).rmsnorm(x.data() + t * cols, weight.data(), eps, acts.view, t);
  }
  return acts;
}

Activations silu_mul(Isa isa, const FloatRows& gate, const FloatRows& up) {
  const auto tokens = static_cast<int64_t>(gate.shape(0));
  const auto cols = static_cast<int64_t>(gate.shape(1));
  require(gate.shape(0) == up.shape(0) && gate.shape(1) == up.shape(1), "equal shapes");
  Activations acts(tokens, cols);
  for (int64_t t = 0; t < tokens; ++t) {
    kernels(isa).silu_mul(gate.data() + t * cols, up.data() + t * cols, acts.view, t,
                          {0, acts.view.groups()});
  }
  return acts;
}

Range checked(const char* what, int64_t begin, int64_t end, int64_t count) {
  require(begin >= 0 && begin <= end && end <= count, what);
  return {begin, end};
}

// Writes the tokens and panels of the ranges into `out` [tokens, rows]; returns nothing.
void gemm(Isa isa, const PackedMatrix& weights, const Activations& acts, OutRows out,
          std::pair<int64_t, int64_t> tokens, std::pair<int64_t, int64_t> panels, bool add) {
  require(weights.cols() == acts.view.cols, "columns of weights and activations differ");
  require(static_cast<int64_t>(out.shape(0)) == acts.view.tokens &&
              static_cast<int64_t>(out.shape(1)) >= weights.rows(),
          "output must be [tokens, rows]");
  const Range rows = checked("token range", tokens.first, tokens.second, acts.view.tokens);
  const Range range = checked("panel range", panels.first, panels.second, weights.panels());
  kernels(isa).gemm(weights, acts.view, rows, range, out.data(), static_cast<int64_t>(out.shape(1)),
                    add ? Store::add : Store::assign);
}

Activations swiglu(Isa isa, const PackedMatrix& gate_up, const Activations& acts) {
  require(gate_up.cols() == acts.view.cols, "columns of weights and activations differ");
  require(gate_up.header().interleaved == 1, "weights must be interleaved");
  Activations out(acts.view.tokens, gate_up.rows() / 2);
  kernels(isa).swiglu(gate_up, acts.view, {0, acts.view.tokens}, {0, out.view.groups()}, out.view);
  return out;
}

}  // namespace

void bind_gemm(nb::module_& module) {
  nb::enum_<WeightType>(module, "WeightType")
      .value("Q4_0", WeightType::q4_0)
      .value("Q4_1", WeightType::q4_1)
      .value("Q8_0", WeightType::q8_0)
      .value("Q4_K", WeightType::q4_k)
      .value("Q6_K", WeightType::q6_k);
  nb::enum_<Isa>(module, "Isa")
      .value("portable", Isa::portable)
      .value("avx2", Isa::avx2)
      .value("avx512vnni", Isa::avx512vnni)
      .value("amx", Isa::amx);
  module.def("supports", &supports);
  module.def("best_isa", &best_isa);
  nb::class_<PackedMatrix>(module, "PackedMatrix")
      .def_prop_ro("rows", &PackedMatrix::rows)
      .def_prop_ro("cols", &PackedMatrix::cols)
      .def_prop_ro("panels", &PackedMatrix::panels)
      .def_prop_ro("nbytes", &PackedMatrix::bytes)
      .def("dequantize", &dequantize_packed);
  // Copies, hence `move`: the default of properties would tie an array to two owners.
  const auto copies = nb::rv_policy::move;
  nb::class_<Activations>(module, "Activations")
      .def_prop_ro(
          "q", [](const Activations& a) { return rows_of(a, a.view.q, kGroup); }, copies)
      .def_prop_ro(
          "scale", [](const Activations& a) { return rows_of(a, a.view.scale, 1); }, copies)
      .def_prop_ro(
          "sum", [](const Activations& a) { return rows_of(a, a.view.sum, 1); }, copies)
      .def_prop_ro(
          "halves", [](const Activations& a) { return rows_of(a, a.view.halves, 2); }, copies);
  module.def("pack", &pack_stacked, nb::arg("type"), nb::arg("cols"), nb::arg("sources"));
  module.def("pack_interleaved", &pack_gate_up, nb::arg("type"), nb::arg("cols"), nb::arg("gate"),
             nb::arg("up"));
  module.def("dequantize", &dequantize, nb::arg("type"), nb::arg("cols"), nb::arg("rows"));
  module.def("quantize", &quantize, nb::arg("isa"), nb::arg("x"));
  module.def("rmsnorm", &rmsnorm, nb::arg("isa"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"));
  module.def("silu_mul", &silu_mul, nb::arg("isa"), nb::arg("gate"), nb::arg("up"));
  module.def("gemm", &gemm, nb::arg("isa"), nb::arg("weights"), nb::arg("acts"), nb::arg("out"),
             nb::arg("tokens"), nb::arg("panels"), nb::arg("add") = false,
             nb::call_guard<nb::gil_scoped_release>());
  module.def("swiglu", &swiglu, nb::arg("isa"), nb::arg("gate_up"), nb::arg("acts"),
             nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace headway
