#include "forward.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace headway {

namespace {

constexpr int64_t kTokenRange = 128;    // rows a unit computes at a time
// Up to so many rows each thread normalises all of them for itself; see Forward::normed.
#if defined(__SANITIZE_THREAD__)
constexpr int64_t kOwnNormRows = 0;
#else
constexpr int64_t kOwnNormRows = 16;
#endif
constexpr int64_t kNormRows = 4;        // rows of a unit that normalises
constexpr size_t kSampledAtOnce = 64;   // rows of logits kept at a time

// How a phase is cut: units a thread, so that a late one costs little, and at most so many columns
// a unit. Phases of few rows are little else than reading and last microseconds; each of their
// units begins with a memory that has gone idle.
struct Grain {
  int64_t units;
  int64_t columns;
};
constexpr Grain kFine{8, 16}, kCoarse{2, 64};
constexpr int64_t kCoarseRows = 16;  // up to so many rows

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Forward::Forward(const Model& model, Path path, KvPool& pool, int threads, int max_rows)
    : model_(model),
      shape_(model.shape),
      path_(path),
      pool_(pool),
      attention_(model.shape, path.gemm, path.vec, threads),
      normed_(max_rows, shape_.hidden),
      heads_(max_rows, shape_.q_size()),
      inner_(max_rows, shape_.intermediate),
      own_views_(static_cast<size_t>(threads)) {
  x_.resize(static_cast<size_t>(max_rows) * shape_.hidden);
  qkv_.resize(static_cast<size_t>(max_rows) * shape_.qkv_size());
  for (int i = 0; i < threads; ++i) {
    own_normed_.emplace_back(std::max<int64_t>(kOwnNormRows, 1), shape_.hidden);
    samplers_.emplace_back(path.vec, shape_.vocab);
  }
  const bool apart = std::any_of(model.layers.begin(), model.layers.end(),
                                 [](const Layer& l) { return l.gate.rows() > 0; });
  if (!apart) return;
  gate_.resize(static_cast<size_t>(max_rows) * shape_.intermediate);
  up_.resize(gate_.size());
}

void Forward::run(Step& step, Team& team, int threads) {
  if (step.chunks.empty()) return;
  threads_ = threads;
  begin(step);
  team.run(threads, [&](Worker& worker) { body(worker, step); });
  step.interrupted = narrowed_from_ < shape_.layers;
  if (!step.interrupted) return;
  step.samples.resize(kept_.sampled);
  if (step.traced) step.trace.logits.resize(kept_.sampled * shape_.vocab);
}

void Forward::begin(Step& step) {
  step_ = &step;
  timing_ = &step.timing;
  rows_.clear();
  sampled_.clear();
  narrowed_from_ = shape_.layers;
  for (size_t i = 0; i < step.chunks.size(); ++i) {
    const Chunk& chunk = step.chunks[i];
    for (int j = 0; j < chunk.count(); ++j)
      rows_.push_back(
          {chunk.tokens[static_cast<size_t>(j)], chunk.start + j, static_cast<int32_t>(i)});
    if (chunk.sample) sampled_.push_back({i, int64_t{chunk.first_row} + chunk.count() - 1});
  }
  whole_ = batch_of(step.chunks.size());
  kept_ = batch_of(static_cast<size_t>(step.kept));
  step.samples.assign(sampled_.size(), {});
  if (step.traced) {
    step.trace.rows = static_cast<int>(whole_.rows);
    step.trace.hidden.resize(static_cast<size_t>(shape_.layers + 1) * rows_.size() * shape_.hidden);
    step.trace.logits.resize(sampled_.size() * shape_.vocab);
  }
  const size_t logits = std::min(sampled_.size(), kSampledAtOnce) * Sampler::row_size(shape_.vocab);
  if (logits_.size() < logits) logits_.resize(logits);
  attention_.plan(step.chunks);
  mark_s_ = now_s();
}

// The first chunks of the step.
Forward::Batch Forward::batch_of(size_t chunks) const {
  Batch b;
  b.chunks = chunks;
  for (const Row& row : rows_) b.rows += static_cast<size_t>(row.chunk) < chunks;
  for (const Sampled& s : sampled_) b.sampled += s.chunk < chunks;
  if (b.rows == 0) return b;
  b.normed = normed_.view(b.rows, shape_.hidden);
  b.heads = heads_.view(b.rows, shape_.q_size());
  b.inner = inner_.view(b.rows, shape_.intermediate);
  return b;
}

void Forward::body(Worker& worker, Step& step) {
  embed(worker);
  if (!layers(worker, step)) return;
  sample_all(worker, step);
}

// False if the step was stopped, or failed.
bool Forward::layers(Worker& worker, Step& step) {
  for (int i = 0; i < shape_.layers; ++i) {
    const Layer& layer = model_.layers[static_cast<size_t>(i)];
    const Batch& batch = batch_in(i);
    if (batch.rows == 0) return false;
    record(worker, step, i);
    project_qkv(worker, layer, i, batch, normed(worker, batch, layer.attn_norm));
    attend(worker, step, i, batch);
    add_product(worker, layer.o, batch.rows, batch.heads);
    mark(worker, Part::output);
    feed_forward(worker, layer, batch, normed(worker, batch, layer.ffn_norm));
    add_product(worker, layer.down, batch.rows, batch.inner);
    mark(worker, Part::down);
    if (worker.failed()) return false;
  }
  record(worker, step, shape_.layers);
  return true;
}

// What is computed in a layer. All threads agree on it: it is decided before they leave the layer
// before.
const Forward::Batch& Forward::batch_in(int layer) const {
  return layer < narrowed_from_ ? whole_ : kept_;
}

// In one unit of a phase, so that one thread alone decides.
void Forward::look_for_interrupt(const Step& step, int layer) {
  if (narrowed_from_ < shape_.layers || layer + 1 >= shape_.layers) return;
  if (kept_.chunks < whole_.chunks && step.interrupt.load(std::memory_order_relaxed))
    narrowed_from_ = layer + 1;
}

void Forward::embed(Worker& worker) {
  worker.share(whole_.rows, [&](int64_t row) {
    dequantize_row(model_.embed, rows_[static_cast<size_t>(row)].token,
                   x_.data() + row * shape_.hidden);
  });
  mark(worker, Part::other);
}

const QuantActs& Forward::normed(Worker& worker, const Batch& batch,
                                 const std::vector<float>& weight) {
  const auto norm = [&](const QuantActs& out, int64_t row) {
    path_.gemm.rmsnorm(x_.data() + row * shape_.hidden, weight.data(), shape_.norm_eps, out, row);
  };
  // Cheaper than another phase, whose results would have to travel between the cores. A thread that
  // is late may read rows that others are changing by then: a data race in the letter of C++, whose
  // outcome nobody uses, since share() finds every unit of the phase it was for taken. Builds for
  // ThreadSanitizer do without, so that whatever it reports is another one.
  if (batch.rows <= kOwnNormRows) {
    const size_t own = static_cast<size_t>(worker.index());
    own_views_[own] = own_normed_[own].view(batch.rows, shape_.hidden);
    for (int64_t row = 0; row < batch.rows; ++row) norm(own_views_[own], row);
    mark(worker, Part::norm);
    return own_views_[own];
  }
  worker.share((batch.rows + kNormRows - 1) / kNormRows, [&](int64_t unit) {
    const int64_t end = std::min(batch.rows, (unit + 1) * kNormRows);
    for (int64_t row = unit * kNormRows; row < end; ++row) norm(batch.normed, row);
  });
  mark(worker, Part::norm);
  return batch.normed;
}

Forward::Cut Forward::cut(int64_t columns, int64_t rows) const {
  const int64_t tokens = (rows + kTokenRange - 1) / kTokenRange;
  const Grain& grain = rows <= kCoarseRows ? kCoarse : kFine;
  const int64_t wanted = std::max<int64_t>(1, grain.units * threads_ / tokens);
  const int64_t step = std::clamp<int64_t>(columns / wanted, 1, grain.columns);
  return {(columns + step - 1) / step, step, tokens};
}

Range Forward::token_range(int64_t index, int64_t rows) const {
  return {index * kTokenRange, std::min(rows, (index + 1) * kTokenRange)};
}

void Forward::project_qkv(Worker& worker, const Layer& layer, int index, const Batch& batch,
                          const QuantActs& in) {
  const int heads = shape_.heads + 2 * shape_.kv_heads;
  const int64_t ranges = (batch.rows + kTokenRange - 1) / kTokenRange;
  worker.share(heads * ranges, [&](int64_t unit) {
    project_head(layer, index, in, static_cast<int>(unit / ranges),
                 token_range(unit % ranges, batch.rows));
  });
  mark(worker, Part::qkv);
}

// One head of Q, K or V: product, bias, norm, rotary embedding, and its place in the cache.
void Forward::project_head(const Layer& layer, int index, const QuantActs& in, int head,
                           Range tokens) {
  const int dim = shape_.head_dim, half = dim / 2;
  const bool is_q = head < shape_.heads;
  const bool is_v = head >= shape_.heads + shape_.kv_heads;
  const PackedMatrix& weights = is_q ? layer.q : is_v ? layer.v : layer.k;
  const int own = is_q ? head : (head - shape_.heads) % shape_.kv_heads;  // index in its matrix
  const int64_t panels = dim / kPanel;
  float* const first = qkv_.data() + head * dim;
  const int64_t stride = shape_.qkv_size();
  path_.gemm.gemm(weights, in, tokens, {own * panels, (own + 1) * panels}, first - own * dim,
                  stride, Store::assign);
  const std::vector<float>& norm = is_q ? layer.q_norm : layer.k_norm;
  const float scale = is_q ? 1.0f / std::sqrt(static_cast<float>(dim)) : 1.0f;
  for (int64_t row = tokens.begin; row < tokens.end; ++row) {
    const Row& r = rows_[static_cast<size_t>(row)];
    float* const x = first + row * stride;
    if (!layer.qkv_bias.empty()) path_.vec.add(x, layer.qkv_bias.data() + head * dim, dim);
    if (!is_v) {
      if (!norm.empty()) path_.vec.head_norm(x, norm.data(), dim, shape_.norm_eps);
      const size_t at = static_cast<size_t>(r.position) * half;
      path_.vec.rope(x, model_.rope.cos.data() + at, model_.rope.sin.data() + at, half, scale);
    }
    if (is_q) continue;
    const Chunk& chunk = step_->chunks[static_cast<size_t>(r.chunk)];
    const int slot = r.position % kBlockTokens;
    uint16_t* const block =
        cache(chunk.blocks[static_cast<size_t>(r.position / kBlockTokens)], index, own);
    if (is_v)
      path_.vec.store_v(x, block + dim * kBlockTokens, dim, slot);
    else
      path_.vec.store_k(x, block, dim, slot);
  }
}

uint16_t* Forward::cache(int block, int layer, int kv_head) {
  return pool_.block(block) +
         static_cast<size_t>(layer * shape_.kv_heads + kv_head) * shape_.head_halves();
}

void Forward::attend(Worker& worker, const Step& step, int index, const Batch& batch) {
  const Attention::Source source{
      step.chunks,
      pool_.data() + static_cast<size_t>(index * shape_.kv_heads) * shape_.head_halves(),
      pool_.block_halves(), qkv_.data()};
  worker.share(attention_.pieces(), [&](int64_t piece) {
    if (piece == 0) look_for_interrupt(step, index);
    if (attention_.chunk_of(piece) < batch.chunks)
      attention_.run(piece, worker.index(), source, batch.heads);
  });
  mark(worker, Part::attention);
}

// x += weights · in
void Forward::add_product(Worker& worker, const PackedMatrix& weights, int64_t rows,
                          const QuantActs& in) {
  const Cut c = cut(weights.panels(), rows);
  worker.share(c.columns * c.tokens, [&](int64_t unit) {
    const int64_t panel = unit / c.tokens * c.step;
    path_.gemm.gemm(weights, in, token_range(unit % c.tokens, rows),
                    {panel, std::min(panel + c.step, weights.panels())}, x_.data(), shape_.hidden,
                    Store::add);
  });
}

void Forward::feed_forward(Worker& worker, const Layer& layer, const Batch& batch,
                           const QuantActs& in) {
  const int64_t groups = shape_.intermediate / kGroup;
  const Cut c = cut(groups, batch.rows);
  worker.share(c.columns * c.tokens, [&](int64_t unit) {
    const Range tokens = token_range(unit % c.tokens, batch.rows);
    const int64_t group = unit / c.tokens * c.step;
    const Range range{group, std::min(group + c.step, groups)};
    if (layer.gate.rows() == 0) {
      path_.gemm.swiglu(layer.gate_up, in, tokens, range, batch.inner);
      return;
    }
    const Range panels{range.begin * (kGroup / kPanel), range.end * (kGroup / kPanel)};
    path_.gemm.gemm(layer.gate, in, tokens, panels, gate_.data(), shape_.intermediate,
                    Store::assign);
    path_.gemm.gemm(layer.up, in, tokens, panels, up_.data(), shape_.intermediate, Store::assign);
    for (int64_t row = tokens.begin; row < tokens.end; ++row) {
      const int64_t at = row * shape_.intermediate + range.begin * kGroup;
      path_.gemm.silu_mul(gate_.data() + at, up_.data() + at, batch.inner, row, range);
    }
  });
  mark(worker, Part::gate_up);
}

void Forward::sample_all(Worker& worker, Step& step) {
  const Batch& batch = batch_in(shape_.layers - 1);
  for (size_t from = 0; from < batch.sampled; from += kSampledAtOnce)
    sample_some(worker, step, from, std::min(kSampledAtOnce, batch.sampled - from));
  // Counted only now: what an interrupt took out leaves no trace in the penalties.
  worker.share(static_cast<int64_t>(batch.chunks), [&](int64_t i) {
    const Chunk& chunk = step.chunks[static_cast<size_t>(i)];
    if (!chunk.sample) chunk.sequence->computed(chunk.start, chunk.tokens);
  });
  mark(worker, Part::sampling);
}

void Forward::sample_some(Worker& worker, Step& step, size_t from, size_t count) {
  const int64_t rows = static_cast<int64_t>(count);
  const int64_t stride = static_cast<int64_t>(Sampler::row_size(shape_.vocab));
  const QuantActs in = normed_.view(rows, shape_.hidden);
  worker.share(rows, [&](int64_t i) {
    const int64_t row = sampled_[from + static_cast<size_t>(i)].row;
    path_.gemm.rmsnorm(x_.data() + row * shape_.hidden, model_.norm.data(), shape_.norm_eps, in, i);
  });
  const Cut c = cut(model_.head.panels(), rows);
  worker.share(c.columns * c.tokens, [&](int64_t unit) {
    const int64_t panel = unit / c.tokens * c.step;
    path_.gemm.gemm(model_.head, in, token_range(unit % c.tokens, rows),
                    {panel, std::min(panel + c.step, model_.head.panels())}, logits_.data(), stride,
                    Store::assign);
  });
  mark(worker, Part::head);
  worker.share(rows, [&](int64_t i) {
    const size_t index = from + static_cast<size_t>(i);
    const Chunk& chunk = step.chunks[sampled_[index].chunk];
    float* const row = logits_.data() + i * stride;
    if (step.traced)
      std::copy(row, row + shape_.vocab, step.trace.logits.data() + index * shape_.vocab);
    chunk.sequence->computed(chunk.start, chunk.tokens);
    step.samples[index] = samplers_[static_cast<size_t>(worker.index())].sample(
        *chunk.sequence, chunk.end() - 1, chunk.mask.empty() ? nullptr : chunk.mask.data(), row);
  });
  mark(worker, Part::sampling);
}

void Forward::record(Worker& worker, Step& step, int index) {
  if (!step.traced) return;
  const size_t size = static_cast<size_t>(whole_.rows) * shape_.hidden;
  worker.share(1, [&](int64_t) {
    std::copy(x_.data(), x_.data() + size, step.trace.hidden.data() + index * size);
  });
}

// Books the time since the last mark, as the first worker sees it.
void Forward::mark(Worker& worker, Part part) {
  if (!worker.first()) return;
  const double t = now_s();
  timing_->parts_s[static_cast<int>(part)] += t - mark_s_;
  mark_s_ = t;
}

}  // namespace headway
