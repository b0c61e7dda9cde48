// headway._native: what Python sees. Typed in headway/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "gemm/bindings.hpp"
#include "marshal.hpp"
#include "runner.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrices = std::map<std::string, std::tuple<WeightType, int64_t, int64_t, Bytes>>;
using Vectors = std::map<std::string, Floats>;

template <class Map>
const auto& named(const Map& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::invalid_argument("the model has no tensor " + name);
  return found->second;
}

TensorSource source_of(const Matrices& matrices, const Vectors& vectors) {
  TensorSource source;
  source.matrix = [&matrices](const std::string& name) -> SourceMatrix {
    const auto& [type, rows, cols, bytes] = named(matrices, name);
    return {type, rows, cols, bytes.data(), bytes.size()};
  };
  source.vector = [&vectors](const std::string& name) {
    const Floats& values = named(vectors, name);
    return std::vector<float>(values.data(), values.data() + values.size());
  };
  return source;
}

// The runner as Python holds it: plans come in, steps go out.
class Executor {
 public:
  Executor(const ModelShape& shape, const Matrices& matrices, const Vectors& vectors,
           const RunnerOptions& options, const std::string& cache_path,
           const std::string& cache_key)
      : store_(cache_path, cache_key),
        runner_(build(shape, matrices, vectors, options, store_), options) {}

  std::shared_ptr<Step> submit(nb::handle plan, nb::handle masks) {
    const auto step = std::make_shared<Step>();
    step->traced = traced;
    try {
      reader_.read(plan, masks, runner_, *step);
      step->check(runner_.capacity());
      runner_.submit(step, static_cast<int>(nb::cast<int64_t>(plan.attr("lane"))));
    } catch (const std::exception& e) {  // a Python error's text too
      step->error = e.what();
      step->finish();
    }
    return step;
  }

  void stop() {
    nb::gil_scoped_release unlocked;
    runner_.stop();
  }

  size_t block_bytes() const { return runner_.block_bytes(); }
  const PackedStore& store() const { return store_; }

  void fill_block(bool host, int block, uint16_t half) {
    KvPool& pool = checked(host, block);
    std::fill_n(pool.block(block), pool.block_halves(), half);
  }

  nb::bytes read_block(bool host, int block) {
    KvPool& pool = checked(host, block);
    return nb::bytes(pool.block(block), pool.block_bytes());
  }

  bool traced = false;

 private:
  static Model build(const ModelShape& shape, const Matrices& matrices, const Vectors& vectors,
                     const RunnerOptions& options, PackedStore& store) {
    nb::gil_scoped_release unlocked;
    return build_model(shape, source_of(matrices, vectors), store, options.capacity.max_model_len);
  }

  KvPool& checked(bool host, int block) {
    KvPool& pool = host ? runner_.host() : runner_.device();
    if (block < 0 || block >= pool.blocks()) throw std::invalid_argument("no such block");
    return pool;
  }

  PlanReader reader_;
  PackedStore store_;
  Runner runner_;
};

// (request, token, log probability, [(token, log probability)], error) of each sampling chunk that
// was computed.
nb::list samples(const Step& step) {
  nb::list out;
  size_t next = 0;
  for (const Chunk& chunk : step.chunks) {
    if (!chunk.sample || next >= step.samples.size()) continue;
    const Sample& s = step.samples[next++];
    nb::object logprobs = nb::none();
    if (chunk.sequence->spec().logprobs >= 0 && s.error.empty()) {
      nb::list top;
      for (const TokenLogprob& t : s.top) top.append(nb::make_tuple(t.token, t.logprob));
      logprobs = nb::make_tuple(s.logprob, nb::tuple(top));
    }
    out.append(nb::make_tuple(chunk.request, s.token, logprobs, s.error));
  }
  return out;
}

using Array = nb::ndarray<nb::numpy, const float, nb::c_contig>;

Array array(const std::vector<float>& values, std::vector<size_t> shape) {
  auto* copy = new std::vector<float>(values);
  const nb::capsule owner(copy,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return Array(copy->data(), shape.size(), shape.data(), owner);
}

nb::tuple trace(const Step& step) {
  const size_t rows = std::max<size_t>(1, static_cast<size_t>(step.trace.rows));
  const size_t sampled = std::max<size_t>(1, step.samples.size());
  return nb::make_tuple(array(step.trace.hidden, {rows, step.trace.hidden.size() / rows}),
                        array(step.trace.logits, {sampled, step.trace.logits.size() / sampled}));
}

nb::dict parts(const Step& step) {
  static constexpr const char* names[kParts] = {"norm", "qkv",  "attention", "output", "gate_up",
                                                "down", "head", "sampling",  "other"};
  nb::dict out;
  for (int i = 0; i < kParts; ++i) out[names[i]] = step.timing.parts_s[i];
  return out;
}

void bind_settings(nb::module_& m) {
  nb::class_<ModelShape>(m, "ModelShape")
      .def(nb::init<>())
      .def_rw("layers", &ModelShape::layers)
      .def_rw("hidden", &ModelShape::hidden)
      .def_rw("intermediate", &ModelShape::intermediate)
      .def_rw("vocab", &ModelShape::vocab)
      .def_rw("heads", &ModelShape::heads)
      .def_rw("kv_heads", &ModelShape::kv_heads)
      .def_rw("head_dim", &ModelShape::head_dim)
      .def_rw("qkv_bias", &ModelShape::qkv_bias)
      .def_rw("qk_norm", &ModelShape::qk_norm)
      .def_rw("tied", &ModelShape::tied)
      .def_rw("rope_theta", &ModelShape::rope_theta)
      .def_rw("rope_factors", &ModelShape::rope_factors)
      .def_rw("norm_eps", &ModelShape::norm_eps);
  nb::class_<Capacity>(m, "Capacity")
      .def(nb::init<>())
      .def_rw("kv_blocks", &Capacity::kv_blocks)
      .def_rw("host_blocks", &Capacity::host_blocks)
      .def_rw("max_seqs", &Capacity::max_seqs)
      .def_rw("max_step_tokens", &Capacity::max_step_tokens)
      .def_rw("max_model_len", &Capacity::max_model_len)
      .def_rw("vocab", &Capacity::vocab)
      .def_rw("units", &Capacity::units);
  nb::class_<RunnerOptions>(m, "RunnerOptions")
      .def(nb::init<>())
      .def_rw("capacity", &RunnerOptions::capacity)
      .def_rw("spin", &RunnerOptions::spin)
      .def_rw("isa", &RunnerOptions::isa);
}

void bind_steps(nb::module_& m) {
  nb::class_<Step>(m, "Step")
      .def("wait", &Step::wait, "timeout_s"_a, "patience_s"_a = -1,
           nb::call_guard<nb::gil_scoped_release>(),
           "Waits so many seconds at most (negative: for ever), and computes meanwhile: then for "
           "`patience_s` at most; whether the step has ended.")
      .def("done", &Step::done)
      .def("interrupt", [](Step& s) { s.interrupt.store(true); })
      .def_prop_ro("interrupted", [](const Step& s) { return s.interrupted; })
      .def_prop_ro("error", [](const Step& s) { return s.error; })
      .def_prop_ro("timing",
                   [](const Step& s) {
                     return nb::make_tuple(s.timing.copy_out_s, s.timing.copy_in_s,
                                           s.timing.compute_s);
                   })
      .def("samples", &samples)
      .def("parts", &parts, "Seconds of compute by part, as the lane's first thread saw them.")
      .def("trace", &trace, "Copies of hidden states and logits, if the executor traced.");
  nb::class_<Executor>(m, "Executor")
      .def(nb::init<const ModelShape&, const Matrices&, const Vectors&, const RunnerOptions&,
                    const std::string&, const std::string&>(),
           "shape"_a, "matrices"_a, "vectors"_a, "options"_a, "cache_path"_a = "",
           "cache_key"_a = "")
      .def_prop_ro("mapped", [](const Executor& e) { return e.store().mapped(); },
                   "Whether all packed weights are those of the cache's file.")
      .def_prop_ro("cache_problem", [](const Executor& e) { return e.store().problem(); },
                   "Why the cache's file was not written; empty if nothing is wrong.")
      .def("submit", &Executor::submit, "plan"_a, "masks"_a)
      .def("stop", &Executor::stop)
      .def_prop_ro("block_bytes", &Executor::block_bytes)
      .def_rw("traced", &Executor::traced)
      .def("fill_block", &Executor::fill_block, "host"_a, "block"_a, "half"_a)
      .def("read_block", &Executor::read_block, "host"_a, "block"_a);
  m.def("uniform", &uniform, "seed"_a, "choice"_a, "position"_a);
}

}  // namespace
}  // namespace headway

NB_MODULE(_native, m) {
  m.doc() = "The CPU engine of Headway.";
  headway::bind_gemm(m);
  headway::bind_settings(m);
  headway::bind_steps(m);
}
