// Loops around the tiles of the vector paths. A Path, in the anonymous namespace of its file, gives
//
//   template <WeightType> static constexpr int max_tile();   most tokens in one tile
//   template <WeightType> static constexpr bool widens();    tiles read TileArgs::wide, not q
//   template <WeightType, int kTile> static void tile(const TileArgs&);
//
// Templates over such a type have internal linkage, as layout.hpp demands.
#pragma once

#include <utility>

#include "elementwise.hpp"
#include "paths.hpp"

namespace headway {

// kTile tokens by one panel. Pointers are at the first token of the tile; `stride` is from one
// group to the next as in QuantActs. The tile writes acc[kTile][16].
struct TileArgs {
  const uint8_t* panel;
  int64_t groups;
  int64_t stride;
  const int8_t* q;
  const float* scale;
  const float* sum;
  const int32_t* negative;
  const int16_t* halves;
  float* acc;
  bool prefetch;  // first tile of a panel: bring in the weights ahead
  const int16_t* wide;
  int64_t wide_stride;  // tokens from one group to the next
};

using Tile = void (*)(const TileArgs&);

template <class Path, WeightType kType, size_t... kIndices>
static inline Tile tile_of(int64_t tokens, std::index_sequence<kIndices...>) {
  static constexpr Tile kTiles[] = {&Path::template tile<kType, kIndices + 1>...};
  return kTiles[tokens - 1];
}

static inline TileArgs tile_args(const PackedMatrix& weights, const QuantActs& acts, int64_t panel,
                                 int64_t token, float* acc, bool prefetch, const int16_t* wide,
                                 int64_t wide_stride) {
  return {weights.panel(panel),
          weights.groups(),
          acts.stride,
          acts.q + token * kGroup,
          acts.scale + token,
          acts.sum + token,
          acts.negative + token,
          acts.halves + 2 * token,
          acc,
          prefetch,
          wide,
          wide_stride};
}

// Tokens whose activations stay in the L2 cache while all panels pass over them.
static inline int64_t block_tokens(int64_t cols, int64_t max_tile) {
  constexpr int64_t kCacheBytes = 384 * 1024;
  const int64_t tiles = kCacheBytes / (cols * 3 / 2) / max_tile;
  return (tiles > 0 ? tiles : 1) * max_tile;
}

// Activations in 16 bits, [group][token][step][input 0, 2, 1, 3 of the step], valid until this
// thread asks again.
static inline const int16_t* widen(const QuantActs& acts, int64_t groups, int64_t first,
                                   int64_t count) {
  int16_t* const wide = widening_buffer(static_cast<size_t>(groups * count * kGroup));
  int16_t* to = wide;
  for (int64_t g = 0; g < groups; ++g) {
    const int8_t* q = acts.q + (g * acts.stride + first) * kGroup;
    for (int64_t i = 0; i < count * kGroup; i += 4, q += 4, to += 4) {
      to[0] = q[0];
      to[1] = q[2];
      to[2] = q[1];
      to[3] = q[3];
    }
  }
  return wide;
}

template <class Path, WeightType kType>
static void multiply_typed(const PackedMatrix& weights, const QuantActs& acts, Range tokens,
                           Range panels, const Rows& out, Store how) {
  constexpr int64_t kMax = Path::template max_tile<kType>();
  alignas(64) float acc[kMax * kPanel];
  const int64_t block = block_tokens(weights.cols(), kMax);
  for (int64_t first = tokens.begin; first < tokens.end; first += block) {
    const int64_t count = min_of(block, tokens.end - first);
    const int64_t tiles = (count + kMax - 1) / kMax;
    const int16_t* wide = nullptr;
    if constexpr (Path::template widens<kType>()) wide = widen(acts, weights.groups(), first, count);
    for (int64_t p = panels.begin; p < panels.end; ++p) {
      const int64_t columns = min_of(kPanel, weights.rows() - p * kPanel);
      for (int64_t i = 0; i < tiles; ++i) {
        // Tiles of nearly equal size: a short last one would waste the unpacking.
        const int64_t begin = first + count * i / tiles;
        const int64_t size = first + count * (i + 1) / tiles - begin;
        tile_of<Path, kType>(size, std::make_index_sequence<kMax>())(
            tile_args(weights, acts, p, begin, acc, i == 0,
                      wide == nullptr ? nullptr : wide + (begin - first) * kGroup, count));
        float* at = panel_of(out, p - panels.begin) + (begin - tokens.begin) * out.ld;
        for (int64_t t = 0; t < size; ++t) {
          store_row(acc + t * kPanel, columns, at + t * out.ld, how);
        }
      }
    }
  }
}

template <class Path>
static void multiply(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
                     const Rows& out, Store how) {
  with_type(weights.type(), [&](auto type) {
    multiply_typed<Path, type.value>(weights, acts, tokens, panels, out, how);
  });
}

template <class Path>
static void gemm(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
                 float* out, int64_t ld, Store how) {
  const Rows rows{out + tokens.begin * ld + panels.begin * kPanel, ld, 0};
  multiply<Path>(weights, acts, tokens, panels, rows, how);
}

template <class Path>
static void swiglu(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
                   const QuantActs& out) {
  swiglu_by_blocks(multiply<Path>, avx2::silu_mul, gate_up, acts, tokens, groups, out);
}

template <class Path>
static constexpr Kernels kernels_of(Isa isa) {
  return {isa, gemm<Path>, swiglu<Path>, avx2::quantize, avx2::rmsnorm, avx2::silu_mul};
}

}  // namespace headway
