// Attention over one split of the paged cache. Included once per instruction set.
//
// A split is walked in tiles of four blocks (64 tokens), aligned to absolute position. Per query:
// scores of the tile, their maximum, exponentials, weighted values; accumulators are rescaled
// between tiles. Each query's operations and their order depend on its position alone, so that a
// decode row and the same row inside a prefill chunk agree to the bit. Tokens past a query's
// position are never multiplied: whatever a recycled block still holds cannot reach a result.

namespace headway::HEADWAY_ISA_NS {
namespace {

constexpr int kTileBlocks = 4;
constexpr int kTileTokens = kTileBlocks * kBlockTokens;
constexpr int kBlockVecs = kBlockTokens / Vec::W;
constexpr int kQueryGroup = HEADWAY_ISA == 2 ? 6 : 3;  // queries computed together
constexpr int kPairBlocks = HEADWAY_ISA == 2 ? 4 : 2;  // blocks whose scores fit in registers
constexpr int kLineHalves = 32;                        // of a cache line
constexpr int kDimVecs = 4;                            // value vectors held at a time

#define INLINE __attribute__((always_inline))

// f(0), f(1), ... f(N - 1) with constant arguments, so that arrays indexed by them stay in
// registers: compilers unroll plain loops too late for that.
template <class F, int... I>
INLINE inline void unroll_over(std::integer_sequence<int, I...>, F&& f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
INLINE inline void unroll(F&& f) {
  unroll_over(std::make_integer_sequence<int, N>{}, f);
}

// Into the second-level cache: the first one has too few misses in flight to keep memory busy.
INLINE inline void fetch(const uint16_t* line) { __builtin_prefetch(line, 0, 2); }

struct Tile {
  const uint16_t* block[kTileBlocks];
  const uint16_t* ahead[kTileBlocks];  // blocks of the next tile
  int blocks;
  bool fetches;  // whether to fetch those ahead
};

// scores[query][token] for Q queries and B blocks, dimensions in ascending order.
// Where `ahead` isn't null, every other block of the next tile is fetched meanwhile, a line a step:
// a head's K and V together are as many lines as it has dimensions. `weigh_dims` fetches the
// others.
template <int Q, int B>
void score_block(const float* const* q, const uint16_t* const* k, const uint16_t* const* ahead,
                 int dim, float* scores) {
  constexpr int V = B * kBlockVecs;
  Vec acc[Q * V];
  unroll<Q * V>([&](auto i) INLINE { acc[i] = Vec::set1(0.0f); });
  for (int d = 0; d < dim; ++d) {
    if (ahead != nullptr)
      unroll<(B + 1) / 2>([&](auto b) INLINE { fetch(ahead[2 * b] + d * kLineHalves); });
    Vec x[Q];
    unroll<Q>([&](auto i) INLINE { x[i] = Vec::set1(q[i][d]); });
    unroll<V>([&](auto j) INLINE {
      const uint16_t* block = k[j / kBlockVecs] + j % kBlockVecs * Vec::W;
      const Vec key = Vec::load_half(block + d * kBlockTokens);
      unroll<Q>([&](auto i) INLINE { acc[i * V + j] = fma(x[i], key, acc[i * V + j]); });
    });
  }
  unroll<Q>([&](auto i) INLINE {
    unroll<V>([&](auto j) INLINE { acc[i * V + j].store(scores + i * kTileTokens + j * Vec::W); });
  });
}

template <int Q>
void score_tile(const float* const* q, const Tile& tile, int dim, float* scores) {
  const auto ahead = [&](int b) { return tile.fetches ? tile.ahead + b : nullptr; };
  int b = 0;
  for (; b + kPairBlocks <= tile.blocks; b += kPairBlocks)
    score_block<Q, kPairBlocks>(q, tile.block + b, ahead(b), dim, scores + b * kBlockTokens);
  if constexpr (kPairBlocks > 2)
    for (; b + 2 <= tile.blocks; b += 2)
      score_block<Q, 2>(q, tile.block + b, ahead(b), dim, scores + b * kBlockTokens);
  for (; b < tile.blocks; ++b)
    score_block<Q, 1>(q, tile.block + b, ahead(b), dim, scores + b * kBlockTokens);
}

// values[query] += sum over tokens [from, to) of p[query][token] * V[token], tokens ascending.
template <int Q, int D>
void weigh_dims(const float* p, const Tile& tile, int dim, int d0, int from, int to,
                float* const* values) {
  Vec acc[Q * D];
  unroll<Q>([&](auto i) INLINE {
    unroll<D>([&](auto j) INLINE { acc[i * D + j] = Vec::load(values[i] + d0 + j * Vec::W); });
  });
  // Lines of the blocks ahead due in each step, all calls over the dimensions taken together.
  constexpr int L = D * Vec::W / kLineHalves;
  int line = (d0 * kTileTokens / (D * Vec::W) + from) * L;
  for (int t = from; t < to; ++t) {
    if (L > 0 && tile.fetches)
      unroll<L>([&](auto) INLINE {
        fetch(line < dim ? tile.ahead[1] + line * kLineHalves
                         : tile.ahead[3] + (line - dim) * kLineHalves);
        ++line;
      });
    const uint16_t* v = tile.block[t / kBlockTokens] + (kBlockTokens + t % kBlockTokens) * dim + d0;
    Vec x[Q];
    unroll<Q>([&](auto i) INLINE { x[i] = Vec::set1(p[i * kTileTokens + t]); });
    unroll<D>([&](auto j) INLINE {
      const Vec value = Vec::load_half(v + j * Vec::W);
      unroll<Q>([&](auto i) INLINE { acc[i * D + j] = fma(x[i], value, acc[i * D + j]); });
    });
  }
  unroll<Q>([&](auto i) INLINE {
    unroll<D>([&](auto j) INLINE { acc[i * D + j].store(values[i] + d0 + j * Vec::W); });
  });
}

template <int Q>
void weigh(const float* p, const Tile& tile, int dim, int from, int to, float* const* values) {
  if (from >= to) return;
  int d = 0;
  for (; d + kDimVecs * Vec::W <= dim; d += kDimVecs * Vec::W)
    weigh_dims<Q, kDimVecs>(p, tile, dim, d, from, to, values);
  for (; d < dim; d += Vec::W) weigh_dims<Q, 1>(p, tile, dim, d, from, to, values);
}

// Scores to exponentials in place; rescales the query's accumulators. `valid` >= 1 tokens count.
void soften(float* scores, int valid, int dim, float* peak, float* lanes, float* values) {
  const int vecs = (valid + Vec::W - 1) / Vec::W;
  const float nothing = -__builtin_inff();
  Vec top = Vec::set1(nothing);
  for (int j = 0; j < vecs; ++j) {
    const Vec s = Vec::load(scores + j * Vec::W).keep_first(valid - j * Vec::W, nothing);
    s.store(scores + j * Vec::W);
    top = max(top, s);
  }
  const float old_peak = *peak;
  const float tile_peak = reduce_max(top);
  const float new_peak = tile_peak > old_peak ? tile_peak : old_peak;
  Vec sum = Vec::load(lanes);
  if (new_peak != old_peak) {  // otherwise the factor is 1, which changes no bit
    const Vec factor = exp(Vec::set1(old_peak - new_peak));
    sum = sum * factor;
    for (int d = 0; d < dim; d += Vec::W) (Vec::load(values + d) * factor).store(values + d);
    *peak = new_peak;
  }
  const Vec shift = Vec::set1(new_peak);
  for (int j = 0; j < vecs; ++j) {
    const Vec e = exp(Vec::load(scores + j * Vec::W) - shift);
    e.store(scores + j * Vec::W);
    sum = sum + e;
  }
  sum.store(lanes);
}

struct Queries {
  const float* q[kQueryGroup];
  float* values[kQueryGroup];
  int valid[kQueryGroup];  // tokens of the tile each query sees
};

// One tile for Q queries in order of position; every one sees at least one token of the tile.
template <int Q>
void attend_tile(const Queries& g, const Tile& tile, int dim, float* peaks, float* lanes,
                 float* scores) {
  score_tile<Q>(g.q, tile, dim, scores);
  int common = g.valid[0], same = 1;
  for (int i = 0; i < Q; ++i) {
    soften(scores + i * kTileTokens, g.valid[i], dim, peaks + i, lanes + i * Vec::W, g.values[i]);
    same &= g.valid[i] == common;
  }
  weigh<Q>(scores, tile, dim, 0, common, g.values);
  if (same) return;
  for (int i = 0; i < Q; ++i)
    weigh<1>(scores + i * kTileTokens, tile, dim, common, g.valid[i], g.values + i);
}

using TileFunction = void (*)(const Queries&, const Tile&, int, float*, float*, float*);
constexpr TileFunction kTileFunctions[] = {
    attend_tile<1>, attend_tile<2>, attend_tile<3>,
#if HEADWAY_ISA == 2
    attend_tile<4>, attend_tile<5>, attend_tile<6>,
#endif
};

// One tile for all rows of one KV head, from `first_query` on; `out` and `lanes` are the head's.
void attend_rows(const AttentionTask& t, int head, int tile_start, int first_query,
                 const Tile& tile, Partial out, float* lanes, float* scores) {
  const int queries = t.rows * t.group;
  const float* const q = t.q + head * t.group * t.head_dim;
  for (int i = first_query; i < queries; i += kQueryGroup) {
    const int n = queries - i < kQueryGroup ? queries - i : kQueryGroup;
    Queries g;
    for (int j = 0; j < n; ++j) {
      const int row = (i + j) / t.group;
      const int seen = t.position + row + 1 - tile_start;
      g.valid[j] = seen < kTileTokens ? seen : kTileTokens;
      g.q[j] = q + row * t.q_stride + (i + j) % t.group * t.head_dim;
      g.values[j] = out.values + static_cast<size_t>(i + j) * t.head_dim;
    }
    kTileFunctions[n - 1](g, tile, t.head_dim, out.peak + i, lanes + i * Vec::W, scores);
  }
}

// A tile of one KV head, and what is read after it: the same blocks of the next head, or the blocks
// of the next tile.
Tile tile_at(const AttentionTask& t, int head, int start, int tokens) {
  Tile tile;
  tile.blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  // Many rows use a tile more often than fetching it costs.
  tile.fetches = t.rows == 1 && tile.blocks == kTileBlocks;
  const bool last = head + 1 == t.heads;
  const size_t head_halves = static_cast<size_t>(t.head_dim) * kBlockTokens * 2;
  for (int b = 0; b < tile.blocks; ++b) {
    const int index = start / kBlockTokens + b, next = last ? index + kTileBlocks : index;
    tile.block[b] = t.pool + t.blocks[index] * t.block_stride + head * head_halves;
    const bool there = next * kBlockTokens < t.position + t.rows;
    const size_t offset = last ? 0 : (head + 1) * head_halves;
    tile.ahead[b] = there ? t.pool + t.blocks[next] * t.block_stride + offset : tile.block[b];
  }
  return tile;
}

void attend(const AttentionTask& t, int split, Partial out, float* scratch) {
  const int each = t.rows * t.group, queries = t.heads * each;
  float* scores = scratch;
  float* lanes = scratch + kQueryGroup * kTileTokens;
  for (int i = 0; i < queries; ++i) out.peak[i] = -__builtin_inff();
  std::memset(out.values, 0, sizeof(float) * static_cast<size_t>(queries) * t.head_dim);
  std::memset(lanes, 0, sizeof(float) * static_cast<size_t>(queries) * Vec::W);

  const int begin = split * kSplitTokens;
  const int seen = t.position + t.rows;  // by the last row
  const int end = seen < begin + kSplitTokens ? seen : begin + kSplitTokens;
  for (int start = begin; start < end; start += kTileTokens) {
    const int tokens = end - start < kTileTokens ? end - start : kTileTokens;
    const int unseeing = start - t.position > 0 ? start - t.position : 0;  // rows before it
    for (int head = 0; head < t.heads; ++head) {
      const size_t first = static_cast<size_t>(head) * each;
      const Partial part{out.values + first * t.head_dim, out.peak + first, out.sum + first};
      attend_rows(t, head, start, unseeing * t.group, tile_at(t, head, start, tokens), part,
                  lanes + first * Vec::W, scores);
    }
  }
  for (int i = 0; i < queries; ++i) out.sum[i] = reduce_add(Vec::load(lanes + i * Vec::W));
}

void merge(Partial total, Partial part, int from, int queries, int dim) {
  for (int i = from; i < queries; ++i) {
    const float peak = total.peak[i] > part.peak[i] ? total.peak[i] : part.peak[i];
    const Vec a = exp(Vec::set1(total.peak[i] - peak));
    const Vec b = exp(Vec::set1(part.peak[i] - peak));
    float* x = total.values + static_cast<size_t>(i) * dim;
    const float* y = part.values + static_cast<size_t>(i) * dim;
    for (int d = 0; d < dim; d += Vec::W)
      fma(Vec::load(x + d), a, Vec::load(y + d) * b).store(x + d);
    float sum[Vec::W];
    fma(Vec::set1(total.sum[i]), a, Vec::set1(part.sum[i]) * b).store(sum);
    total.sum[i] = sum[0];
    total.peak[i] = peak;
  }
}

void normalise(const float* values, float sum, int dim, float* x) {
  const Vec inverse = Vec::set1(1.0f / sum);
  for (int d = 0; d < dim; d += Vec::W) (Vec::load(values + d) * inverse).store(x + d);
}

#undef INLINE

}  // namespace
}  // namespace headway::HEADWAY_ISA_NS
