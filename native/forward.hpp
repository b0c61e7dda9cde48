// The forward pass of one step over a batch of rows, on a team of threads.
#pragma once

#include <atomic>
#include <vector>

#include "attention.hpp"
#include "gemm/gemm.hpp"
#include "kernels/kernels.hpp"
#include "kv_pool.hpp"
#include "model.hpp"
#include "plan.hpp"
#include "sampler.hpp"
#include "team.hpp"

namespace headway {

// The functions of the chosen instruction path.
struct Path {
  const Kernels& gemm;
  const VectorKernels& vec;
};

// Owns the activations of a lane and runs steps one at a time. Five phases a layer for small
// batches: qkv (with rotary embedding and cache writes), attention, output projection, gate and up
// (with SwiGLU), down; two more where the norms are worth sharing.
class Forward {
 public:
  Forward(const Model& model, Path path, KvPool& pool, int threads, int max_rows);

  // Computes the step's chunks: writes their K and V, samples, fills samples, trace and timing.
  // Once step.interrupt is set it goes on, from the next layer, with the first step.kept chunks
  // alone; with none of them it stops there.
  void run(Step& step, Team& team, int threads);

 private:
  struct Row {
    int32_t token;
    int32_t position;
    int32_t chunk;
  };
  struct Sampled {
    size_t chunk;
    int64_t row;  // of the batch
  };
  // The first chunks of the step: all of them, or those that an interrupt leaves.
  struct Batch {
    size_t chunks = 0;
    size_t sampled = 0;  // of those, how many sample
    int64_t rows = 0;
    QuantActs normed, heads, inner;  // normed: of batches too large for own_views_
  };
  // How a phase is cut: ranges of panels (outer) times ranges of tokens (inner).
  struct Cut {
    int64_t columns;  // units of columns
    int64_t step;     // columns a unit
    int64_t tokens;   // ranges of tokens
  };

  void begin(Step& step);
  void body(Worker& worker, Step& step);
  bool layers(Worker& worker, Step& step);
  void embed(Worker& worker);
  Batch batch_of(size_t chunks) const;
  const Batch& batch_in(int layer) const;
  void look_for_interrupt(const Step& step, int layer);
  const QuantActs& normed(Worker& worker, const Batch& batch, const std::vector<float>& weight);
  void project_qkv(Worker& worker, const Layer& layer, int index, const Batch& batch,
                   const QuantActs& in);
  void project_head(const Layer& layer, int index, const QuantActs& in, int head, Range tokens);
  void attend(Worker& worker, const Step& step, int index, const Batch& batch);
  void feed_forward(Worker& worker, const Layer& layer, const Batch& batch, const QuantActs& in);
  void add_product(Worker& worker, const PackedMatrix& weights, int64_t rows, const QuantActs& in);
  void sample_all(Worker& worker, Step& step);
  void sample_some(Worker& worker, Step& step, size_t from, size_t count);
  void record(Worker& worker, Step& step, int index);
  void mark(Worker& worker, Part part);
  Cut cut(int64_t columns, int64_t rows) const;
  Range token_range(int64_t index, int64_t rows) const;
  uint16_t* cache(int block, int layer, int kv_head);

  const Model& model_;
  const ModelShape& shape_;
  Path path_;
  KvPool& pool_;
  int threads_ = 1;  // of the step
  Attention attention_;

  Batch whole_, kept_;
  std::atomic<int> narrowed_from_{0};  // the layer; their number while nothing has been taken out
  const Step* step_ = nullptr;
  std::vector<Row> rows_;
  std::vector<Sampled> sampled_;
  std::vector<float> x_;    // [rows][hidden], the residual stream
  std::vector<float> qkv_;  // [rows][qkv_size]
  std::vector<float> logits_;
  QuantBuffer normed_, heads_, inner_;
  std::vector<QuantBuffer> own_normed_;  // a thread each, for small batches
  std::vector<QuantActs> own_views_;
  std::vector<float> gate_, up_;  // where they are not interleaved
  std::vector<Sampler> samplers_;
  double mark_s_ = 0;
  Timing* timing_ = nullptr;
};

}  // namespace headway
