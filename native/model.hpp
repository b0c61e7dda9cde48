// A model packed for the kernels: shape, matrices, vectors. Immutable once built.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gemm/gemm.hpp"
#include "packed_file.hpp"

namespace headway {

struct ModelShape {
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int vocab = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool tied = false;
  double rope_theta = 0;
  std::vector<double> rope_factors;  // a divisor of each frequency, or empty
  float norm_eps = 0;

  int group() const { return heads / kv_heads; }
  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }
  // Halves of one block over one layer and one KV head, K and V; over everything.
  size_t head_halves() const { return static_cast<size_t>(head_dim) * 16 * 2; }
  size_t block_halves() const { return head_halves() * static_cast<size_t>(layers * kv_heads); }
};

// A tensor as it comes from a file.
struct SourceMatrix {
  WeightType type;
  int64_t rows;
  int64_t cols;
  const uint8_t* bytes;
  size_t size;
};

struct Layer {
  std::vector<float> attn_norm, ffn_norm;
  std::vector<float> qkv_bias;        // [qkv_size], or empty
  std::vector<float> q_norm, k_norm;  // [head_dim], or empty
  PackedMatrix q, k, v, o, down;
  PackedMatrix gate_up;   // interleaved, where gate and up have the same type
  PackedMatrix gate, up;  // apart otherwise
};

// Cosines and sines of the rotary embedding, [positions][head_dim / 2].
struct RopeTable {
  std::vector<float> cos, sin;
};

struct Model {
  ModelShape shape;
  PackedMatrix embed, head;
  std::vector<float> norm;
  std::vector<Layer> layers;
  RopeTable rope;
};

// Where build_model finds the tensors, by their name in headway.models.types.Weights. Both throw
// std::invalid_argument, naming the tensor, where it is missing.
struct TensorSource {
  std::function<SourceMatrix(const std::string&)> matrix;
  std::function<std::vector<float>(const std::string&)> vector;
};

// A model for contexts of up to `positions` tokens, its matrices from the store. Throws
// std::invalid_argument where the shape or a tensor cannot be.
Model build_model(const ModelShape& shape, const TensorSource& source, PackedStore& store,
                  int positions);

}  // namespace headway
