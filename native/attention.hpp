// Attention of a step: which pieces of work there are, and how one is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gemm/gemm.hpp"
#include "kernels/kernels.hpp"
#include "model.hpp"
#include "plan.hpp"

namespace headway {

// A chunk of one token and long context is cut at the fixed splits into pieces for several
// threads, the last of which joins the results in order of position. A piece is one KV head, or all
// of them where there are pieces enough: they lie side by side in memory. A piece of a longer chunk
// is a tile of its rows, and walks the splits itself, in the same order: the same bits.
class Attention {
 public:
  Attention(const ModelShape& shape, const Kernels& gemm, const VectorKernels& kernels,
            int threads);

  // Lists the pieces of a step; the same for each of its layers.
  void plan(const std::vector<Chunk>& chunks);
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  size_t chunk_of(int64_t piece) const {
    return static_cast<size_t>(pieces_[static_cast<size_t>(piece)].chunk);
  }

  struct Source {
    const std::vector<Chunk>& chunks;
    const uint16_t* pool;  // the layer's part of block 0
    size_t block_stride;
    const float* qkv;  // [rows][qkv_size]
  };
  // Does one piece on a thread, and quantises its heads' output into `out`.
  void run(int64_t piece, int thread, const Source& source, const QuantActs& out);

 private:
  struct Piece {
    int chunk;
    int kv_head;
    int heads;
    int row;  // of the chunk
    int rows;
    int split;     // -1: all of them
    int row_task;  // index into pending_ and partials_, where split >= 0
    int64_t cost;
  };
  struct RowTask {
    int splits;
    size_t partial;  // floats before its first partial
  };

  void add_row(int chunk, const Chunk& c, int heads);
  void add_tiles(int chunk, const Chunk& c);
  AttentionTask task(const Piece& piece, const Source& source) const;
  Partial partial_at(float* base, int queries) const;
  size_t partial_floats(int queries) const;
  void run_split(const Piece& piece, int thread, const Source& source, const QuantActs& out);
  void run_tile(const Piece& piece, int thread, const Source& source, const QuantActs& out);
  void emit(const AttentionTask& task, const Piece& piece, int first_row, int row,
            const Partial& total, const QuantActs& out, float* heads) const;

  const ModelShape& shape_;
  const Kernels& gemm_;
  const VectorKernels& kernels_;
  int threads_;
  int tile_rows_;
  std::vector<Piece> pieces_;
  std::vector<RowTask> row_tasks_;
  std::unique_ptr<std::atomic<int>[]> pending_;
  size_t pending_size_ = 0;
  std::vector<float> partials_;
  std::vector<std::vector<float>> scratch_;  // a thread each
};

}  // namespace headway
