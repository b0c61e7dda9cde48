#include "model.hpp"

#include <cmath>
#include <stdexcept>

namespace headway {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_shape(const ModelShape& s) {
  const auto positive = [](int value, const char* name) {
    if (value <= 0) refuse(std::string(name) + " must be positive");
  };
  positive(s.layers, "layers");
  positive(s.hidden, "hidden");
  positive(s.intermediate, "intermediate");
  positive(s.vocab, "vocab");
  positive(s.heads, "heads");
  positive(s.kv_heads, "kv_heads");
  positive(s.head_dim, "head_dim");
  if (s.heads % s.kv_heads != 0) refuse("heads must be a multiple of kv_heads");
  if (s.head_dim % 32 != 0) refuse("head_dim must be a multiple of 32");
  if (s.hidden % 32 != 0) refuse("hidden must be a multiple of 32");
  if (!s.rope_factors.empty() && s.rope_factors.size() != static_cast<size_t>(s.head_dim / 2))
    refuse("rope factors must be head_dim / 2");
  if (s.intermediate % 32 != 0) refuse("intermediate must be a multiple of 32");
}

class Builder {
 public:
  Builder(const ModelShape& shape, const TensorSource& source, PackedStore& store)
      : s_(shape), source_(source), store_(store) {}

  // In the order of their use, one behind the other in memory.
  Layer layer(int index) {
    const std::string at = "layers." + std::to_string(index) + ".";
    Layer l;
    l.attn_norm = vector(at + "attn_norm", s_.hidden);
    l.ffn_norm = vector(at + "ffn_norm", s_.hidden);
    l.q = packed(at + "q", s_.q_size(), s_.hidden);
    l.k = packed(at + "k", s_.kv_size(), s_.hidden);
    l.v = packed(at + "v", s_.kv_size(), s_.hidden);
    l.o = packed(at + "o", s_.hidden, s_.q_size());
    feed_forward(at, l);
    l.down = packed(at + "down", s_.hidden, s_.intermediate);
    if (s_.qkv_bias) l.qkv_bias = biases(at);
    if (s_.qk_norm) {
      l.q_norm = vector(at + "q_norm", s_.head_dim);
      l.k_norm = vector(at + "k_norm", s_.head_dim);
    }
    return l;
  }

  PackedMatrix packed(const std::string& name, int64_t rows, int64_t cols) {
    const SourceMatrix m = checked(name, rows, cols);
    return store_.get(name, {kPackedVersion, m.type, 0, {0, 0}, rows, cols},
                      [&] { return pack(m.type, rows, cols, m.bytes, &arena_); });
  }

  std::vector<float> vector(const std::string& name, int size) const {
    std::vector<float> v = source_.vector(name);
    if (v.size() != static_cast<size_t>(size))
      refuse(name + " has " + std::to_string(v.size()) + " values, not " + std::to_string(size));
    return v;
  }

 private:
  void feed_forward(const std::string& at, Layer& l) {
    const SourceMatrix gate = checked(at + "gate", s_.intermediate, s_.hidden);
    const SourceMatrix up = checked(at + "up", s_.intermediate, s_.hidden);
    if (gate.type != up.type) {
      l.gate = packed(at + "gate", s_.intermediate, s_.hidden);
      l.up = packed(at + "up", s_.intermediate, s_.hidden);
      return;
    }
    const PackedHeader header{kPackedVersion, gate.type, 1, {0, 0}, 2 * gate.rows, gate.cols};
    l.gate_up = store_.get(at + "gate_up", header, [&] {
      return pack_interleaved(gate.type, gate.rows, gate.cols, gate.bytes, up.bytes, &arena_);
    });
  }

  std::vector<float> biases(const std::string& at) const {
    std::vector<float> all = vector(at + "q_bias", s_.q_size());
    for (const char* name : {"k_bias", "v_bias"}) {
      const std::vector<float> part = vector(at + name, s_.kv_size());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  SourceMatrix checked(const std::string& name, int64_t rows, int64_t cols) const {
    const SourceMatrix m = source_.matrix(name);
    if (m.rows != rows || m.cols != cols)
      refuse(name + " is " + std::to_string(m.rows) + " x " + std::to_string(m.cols) + ", not " +
             std::to_string(rows) + " x " + std::to_string(cols));
    if (m.size != gguf_row_bytes(m.type, cols) * static_cast<size_t>(rows))
      refuse(name + " has " + std::to_string(m.size) + " bytes, which isn't its shape's size");
    return m;
  }

  const ModelShape& s_;
  const TensorSource& source_;
  PackedStore& store_;
  WeightArena arena_;
};

RopeTable rope_table(const ModelShape& s, int positions) {
  const int half = s.head_dim / 2;
  RopeTable table;
  table.cos.resize(static_cast<size_t>(positions) * half);
  table.sin.resize(table.cos.size());
  for (int i = 0; i < half; ++i) {
    double frequency = std::pow(s.rope_theta, -2.0 * i / s.head_dim);
    if (!s.rope_factors.empty()) frequency /= s.rope_factors[static_cast<size_t>(i)];
    for (int p = 0; p < positions; ++p) {
      const size_t at = static_cast<size_t>(p) * half + i;
      table.cos[at] = static_cast<float>(std::cos(p * frequency));
      table.sin[at] = static_cast<float>(std::sin(p * frequency));
    }
  }
  return table;
}

}  // namespace

Model build_model(const ModelShape& shape, const TensorSource& source, PackedStore& store,
                  int positions) {
  check_shape(shape);
  Builder builder(shape, source, store);
  Model model;
  model.shape = shape;
  model.embed = builder.packed("embed", shape.vocab, shape.hidden);
  model.head = shape.tied ? model.embed : builder.packed("head", shape.vocab, shape.hidden);
  model.norm = builder.vector("norm", shape.hidden);
  for (int i = 0; i < shape.layers; ++i) model.layers.push_back(builder.layer(i));
  store.finish();
  model.rope = rope_table(shape, positions);
  return model;
}

}  // namespace headway
