#include "attention.hpp"

#include <algorithm>

namespace headway {

namespace {

constexpr int kTileQueries = 48;
constexpr int kPiecesPerThread = 8;  // enough for threads to end together

}  // namespace

Attention::Attention(const ModelShape& shape, const Kernels& gemm, const VectorKernels& kernels,
                     int threads)
    : shape_(shape),
      gemm_(gemm),
      kernels_(kernels),
      threads_(threads),
      tile_rows_(std::max(1, kTileQueries / shape.group())) {
  const int queries = std::max(tile_rows_ * shape.group(), shape.heads);
  // Scratch of the kernel, a split's partial, the total so far, and one row of output heads.
  const size_t floats = attention_scratch(queries) + 2 * partial_floats(queries) +
                        static_cast<size_t>(shape.heads * shape.head_dim);
  scratch_.assign(static_cast<size_t>(threads), std::vector<float>(floats));
}

size_t Attention::partial_floats(int queries) const {
  return static_cast<size_t>(queries) * (static_cast<size_t>(shape_.head_dim) + 2);
}

Partial Attention::partial_at(float* base, int queries) const {
  const size_t values = static_cast<size_t>(queries) * static_cast<size_t>(shape_.head_dim);
  return {base, base + values, base + values + queries};
}

void Attention::plan(const std::vector<Chunk>& chunks) {
  pieces_.clear();
  row_tasks_.clear();
  int whole = 0;  // pieces of all heads there would be
  for (const Chunk& c : chunks)
    if (c.count() == 1) whole += (c.end() + kSplitTokens - 1) / kSplitTokens;
  const int heads = whole >= kPiecesPerThread * threads_ ? shape_.kv_heads : 1;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].count() == 1)
      add_row(static_cast<int>(i), chunks[i], heads);
    else
      add_tiles(static_cast<int>(i), chunks[i]);
  }
  if (row_tasks_.size() > pending_size_) {
    pending_size_ = row_tasks_.size() * 2;
    pending_ = std::make_unique<std::atomic<int>[]>(pending_size_);
  }
  for (size_t i = 0; i < row_tasks_.size(); ++i) pending_[i].store(row_tasks_[i].splits);
  // Long pieces first, so that none of them is begun last; heads of one row stay together.
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
}

void Attention::add_row(int chunk, const Chunk& c, int heads) {
  const int splits = (c.end() + kSplitTokens - 1) / kSplitTokens;
  const size_t each = partial_floats(heads * shape_.group());
  for (int head = 0; head < shape_.kv_heads; head += heads) {
    if (splits == 1) {
      pieces_.push_back({chunk, head, heads, 0, 1, -1, 0, c.end()});
      continue;
    }
    const int task = static_cast<int>(row_tasks_.size());
    const size_t partial = task == 0 ? 0
                                     : row_tasks_.back().partial +
                                           static_cast<size_t>(row_tasks_.back().splits) * each;
    row_tasks_.push_back({splits, partial});
    for (int split = 0; split < splits; ++split)
      pieces_.push_back({chunk, head, heads, 0, 1, split, task,
                         std::min(kSplitTokens, c.end() - split * kSplitTokens)});
    const size_t needed = partial + static_cast<size_t>(splits) * each;
    if (partials_.size() < needed) partials_.resize(needed * 2);
  }
}

void Attention::add_tiles(int chunk, const Chunk& c) {
  for (int row = 0; row < c.count(); row += tile_rows_) {
    const int rows = std::min(tile_rows_, c.count() - row);
    for (int head = 0; head < shape_.kv_heads; ++head)
      pieces_.push_back({chunk, head, 1, row, rows, -1, 0, int64_t{rows} * (c.start + row + rows)});
  }
}

AttentionTask Attention::task(const Piece& piece, const Source& source) const {
  const Chunk& chunk = source.chunks[static_cast<size_t>(piece.chunk)];
  const size_t stride = static_cast<size_t>(shape_.qkv_size());
  AttentionTask t;
  t.pool = source.pool + static_cast<size_t>(piece.kv_head) * shape_.head_halves();
  t.block_stride = source.block_stride;
  t.blocks = chunk.blocks.data();
  t.head_dim = shape_.head_dim;
  t.heads = piece.heads;
  t.rows = piece.rows;
  t.group = shape_.group();
  t.position = chunk.start + piece.row;
  t.q = source.qkv + static_cast<size_t>(chunk.first_row + piece.row) * stride +
        static_cast<size_t>(piece.kv_head * shape_.group() * shape_.head_dim);
  t.q_stride = stride;
  return t;
}

void Attention::run(int64_t piece, int thread, const Source& source, const QuantActs& out) {
  const Piece& p = pieces_[static_cast<size_t>(piece)];
  if (p.split >= 0)
    run_split(p, thread, source, out);
  else
    run_tile(p, thread, source, out);
}

void Attention::run_split(const Piece& piece, int thread, const Source& source,
                          const QuantActs& out) {
  const AttentionTask t = task(piece, source);
  const int first_row = source.chunks[static_cast<size_t>(piece.chunk)].first_row;
  const RowTask& row = row_tasks_[static_cast<size_t>(piece.row_task)];
  const int queries = t.heads * t.group;
  const size_t each = partial_floats(queries);
  float* const base = partials_.data() + row.partial;
  float* const scratch = scratch_[static_cast<size_t>(thread)].data();
  kernels_.attend(t, piece.split,
                  partial_at(base + static_cast<size_t>(piece.split) * each, queries), scratch);
  std::atomic<int>& pending = pending_[static_cast<size_t>(piece.row_task)];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  pending.store(row.splits, std::memory_order_relaxed);  // for the next layer
  const Partial total = partial_at(base, queries);
  for (int split = 1; split < row.splits; ++split)
    kernels_.merge(total, partial_at(base + static_cast<size_t>(split) * each, queries), 0, queries,
                   t.head_dim);
  emit(t, piece, first_row, 0, total, out, scratch);
}

void Attention::run_tile(const Piece& piece, int thread, const Source& source,
                         const QuantActs& out) {
  const AttentionTask t = task(piece, source);
  const int first_row = source.chunks[static_cast<size_t>(piece.chunk)].first_row;
  const int queries = t.heads * t.rows * t.group;
  float* const base = scratch_[static_cast<size_t>(thread)].data();
  const Partial total = partial_at(base, queries);
  const Partial part = partial_at(base + partial_floats(queries), queries);
  float* const scratch = base + 2 * partial_floats(queries);
  kernels_.attend(t, 0, total, scratch);
  const int splits = (t.position + t.rows + kSplitTokens - 1) / kSplitTokens;
  for (int split = 1; split < splits; ++split) {
    kernels_.attend(t, split, part, scratch);
    // Rows that stand before the split saw nothing of it. Several heads come with one row alone.
    const int from = std::max(0, split * kSplitTokens - t.position) * t.group;
    kernels_.merge(total, part, from, queries, t.head_dim);
  }
  for (int row = 0; row < t.rows; ++row) emit(t, piece, first_row, row, total, out, scratch);
}

// Output heads of one row of a piece, quantised in place among those of the other KV heads.
void Attention::emit(const AttentionTask& t, const Piece& piece, int first_row, int row,
                     const Partial& total, const QuantActs& out, float* heads) const {
  const int each = t.heads * t.group;  // query heads of a row
  for (int g = 0; g < each; ++g) {
    const int query = row * each + g;
    kernels_.normalise(total.values + static_cast<size_t>(query) * t.head_dim, total.sum[query],
                       t.head_dim, heads + g * t.head_dim);
  }
  const int64_t groups = int64_t{t.group} * t.head_dim / kGroup;
  const int64_t token = first_row + piece.row + row;
  gemm_.quantize(heads, out, token,
                 {piece.kv_head * groups, (piece.kv_head + piece.heads) * groups});
}

}  // namespace headway
