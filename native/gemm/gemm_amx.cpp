// The AMX path: the tile unit multiplies up to 16 tokens with a group of a panel at a time.
//
// A panel is unpacked once to signed bytes and float scales, then used by all tokens. The sums of
// its groups come out of the tile unit through memory, and are scaled as on the AVX-512 path:
// integers are exact, so the bits are the same.
//
// Vector operations don't overlap with those of the tile unit: a lone tile instruction among them
// costs some 50 cycles on Granite Rapids. So a batch of groups is multiplied, then scaled.
#if defined(__x86_64__) && defined(HEADWAY_AMX)

#include "avx512.hpp"
#include "elementwise.hpp"
#include "paths.hpp"

#include <utility>

namespace headway {
namespace {

constexpr int64_t kFewestTokens = 10;  // below, the AVX-512 path is as fast
constexpr int64_t kMostRows = 16;
constexpr int64_t kBlockTiles = 8;    // tiles of tokens that share an unpacked panel
constexpr int64_t kChunkGroups = 32;  // of a panel unpacked at a time, to stay in the L1 cache
constexpr int64_t kBatch = 8;         // products between two scalings, likewise

// One group of a panel. Row s of the tile operand is step s: 16 columns by 4 inputs.
struct alignas(64) Unpacked {
  int8_t steps[8][64];
  float scale[16];   // d; Q6_K: scale of the first half
  float second[16];  // m; Q6_K: scale of the second half
  float super[16];   // Q6_K alone: d
};

// Tile registers: sums 0 to 3, tokens 4 and 5, weights 6 and 7.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Configures the calling thread's tile unit for as long as it lives.
class TileUnit {
 public:
  TileUnit(WeightType type, int64_t rows) {
    const int steps = type == WeightType::q6_k ? 4 : 8;
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 4 * steps : 64);
      config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : steps);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  ~TileUnit() { _tile_release(); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;
};

// Tokens as tiles of one height. The last one reaches back to fill itself; what it computes again
// comes out the same.
struct Tiles {
  Range tokens;
  int64_t rows;
  int64_t count;

  explicit Tiles(Range range) : tokens(range) {
    const int64_t all = range.end - range.begin;
    count = (all + kMostRows - 1) / kMostRows;
    rows = (all + count - 1) / count;
  }
  int64_t start(int64_t i) const { return i + 1 < count ? fresh(i) : tokens.end - rows; }
  // The first token that no tile before this one has.
  int64_t fresh(int64_t i) const { return tokens.begin + i * rows; }
};

void put(Unpacked& to, int step, __m512i bytes) { _mm512_store_si512(to.steps[step], bytes); }

template <WeightType kType>
[[gnu::always_inline]] inline void unpack_group(const uint8_t* at, const uint8_t* supers,
                                                Unpacked& to) {
  if constexpr (kType == WeightType::q8_0) {
    for (int s = 0; s < 8; ++s) {
      put(to, s, _mm512_xor_si512(load(at + 64 * s), _mm512_set1_epi8(-128)));
    }
  } else {
    const __m512i offset = _mm512_set1_epi8(kType == WeightType::q4_0 ? 8 : 0);
    for (int v = 0; v < 4; ++v) {
      const __m512i both = load(at + 64 * v);
      put(to, v, _mm512_sub_epi8(low_nibbles(both), offset));
      put(to, v + 4, _mm512_sub_epi8(high_nibbles(both), offset));
    }
  }
  const Scales scales = scales_at<kType>(at + panel_layout(kType).quants, supers);
  _mm512_store_ps(to.scale, scales.d);
  _mm512_store_ps(to.second, scales.m);
}

template <int kSide, int kStep>
void put_six_bits(Unpacked& to, const uint8_t* at) {
  put(to, 4 * kSide + kStep, _mm512_sub_epi8(six_bits<kSide, kStep>(at), _mm512_set1_epi8(32)));
}

template <>
[[gnu::always_inline]] inline void unpack_group<WeightType::q6_k>(const uint8_t* at,
                                                                  const uint8_t* supers,
                                                                  Unpacked& to) {
  put_six_bits<0, 0>(to, at);
  put_six_bits<0, 1>(to, at);
  put_six_bits<0, 2>(to, at);
  put_six_bits<0, 3>(to, at);
  put_six_bits<1, 0>(to, at);
  put_six_bits<1, 1>(to, at);
  put_six_bits<1, 2>(to, at);
  put_six_bits<1, 3>(to, at);
  const SideScales scales = side_scales_at(at + panel_layout(WeightType::q6_k).quants);
  _mm512_store_ps(to.scale, scales.side[0]);
  _mm512_store_ps(to.second, scales.side[1]);
  _mm512_store_ps(to.super, halves_at(supers));
}

// Unpacks a run of groups, and asks for as many bytes behind them: they are wanted next.
template <WeightType kType>
void unpack(const uint8_t* panel, Range groups, Unpacked* to) {
  const size_t begin = group_offset(kType, groups.begin);
  const size_t ahead = group_offset(kType, groups.end) - begin;
  for (int64_t g = groups.begin; g < groups.end; ++g, ++to) {
    const uint8_t* at = panel + group_offset(kType, g);
    for (size_t line = 0; line < panel_layout(kType).quants; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(at) + ahead + line, _MM_HINT_T1);
    }
    unpack_group<kType>(at, panel + super_offset(kType, g), *to);
  }
  __asm__ volatile("" : : : "memory");  // compilers don't see the tile unit read
}

// Pointers at the first token of a tile and the first group of a run; strides as in QuantActs.
struct Tokens {
  const int8_t* q;
  const float* scale;
  const float* sum;
  int64_t stride;
};

Tokens tokens_at(const QuantActs& acts, int64_t token, int64_t group) {
  const int64_t at = acts.at(token, group);
  return {acts.q + at * kGroup, acts.scale + at, acts.sum + at, acts.stride};
}

enum class Form : uint8_t { plain, minimum, six_bits };

// Integer sums of a batch of products by token and column. A product is a group, but half of one
// in Q6_K.
template <int kRows>
struct alignas(64) Dots {
  int32_t sums[kBatch][kRows * kPanel];
};

template <Form kForm>
constexpr int64_t kProducts = kForm == Form::six_bits ? 2 : 1;  // of a group

// Starts a product in the sums register kTile.
template <int kTile>
[[gnu::always_inline]] inline void multiply(const int8_t* weights, const int8_t* q) {
  // The registers are part of an instruction's name.
  if constexpr (kTile == 0) {
    _tile_zero(0);
    _tile_loadd(4, q, kGroup);
    _tile_loadd(6, weights, 64);
    _tile_dpbssd(0, 4, 6);
  } else if constexpr (kTile == 1) {
    _tile_zero(1);
    _tile_loadd(5, q, kGroup);
    _tile_loadd(7, weights, 64);
    _tile_dpbssd(1, 5, 7);
  } else if constexpr (kTile == 2) {
    _tile_zero(2);
    _tile_loadd(4, q, kGroup);
    _tile_loadd(6, weights, 64);
    _tile_dpbssd(2, 4, 6);
  } else {
    _tile_zero(3);
    _tile_loadd(5, q, kGroup);
    _tile_loadd(7, weights, 64);
    _tile_dpbssd(3, 5, 7);
  }
}

template <int kTile>
[[gnu::always_inline]] inline void take(int32_t* sums) {
  if constexpr (kTile == 0) _tile_stored(0, sums, 64);
  if constexpr (kTile == 1) _tile_stored(1, sums, 64);
  if constexpr (kTile == 2) _tile_stored(2, sums, 64);
  if constexpr (kTile == 3) _tile_stored(3, sums, 64);
}

// The products of a batch of groups. Sums are taken three products later, when they are there.
template <Form kForm, int kRows>
[[gnu::always_inline]] inline void multiply_batch(const Unpacked* weights, int64_t groups,
                                                  const int8_t* q, int64_t step,
                                                  Dots<kRows>& dots) {
  constexpr int64_t kEach = kProducts<kForm>;
  constexpr int64_t kLater = 3;
  const int64_t products = groups * kEach;
  const auto turn = [&]<int kTile>(int64_t i) [[gnu::always_inline]] {
    if (i < products) {
      const int64_t g = i / kEach, half = i % kEach;
      multiply<kTile>(weights[g].steps[4 * half], q + g * step + kGroup / 2 * half);
    }
    if (i >= kLater && i < products + kLater) take<(kTile + 1) % 4>(dots.sums[i - kLater]);
  };
  for (int64_t i = 0; i < products + kLater; i += 4) {
    turn.template operator()<0>(i);
    turn.template operator()<1>(i + 1);
    turn.template operator()<2>(i + 2);
    turn.template operator()<3>(i + 3);
  }
}

template <int kRows>
struct Sums {
  __m512 lanes[kRows];
};

[[gnu::always_inline]] inline __m512 floats_of(const int32_t* sums) {
  return _mm512_cvtepi32_ps(_mm512_load_si512(sums));
}

template <Form kForm, int kRows>
[[gnu::always_inline]] inline void add_scaled(Sums<kRows>& acc, const int32_t* sums,
                                              const Unpacked& weights, const float* scale,
                                              const float* sum) {
  const __m512 first = _mm512_load_ps(weights.scale);
  const __m512 second = _mm512_load_ps(weights.second);
  const __m512 d = kForm == Form::six_bits ? _mm512_load_ps(weights.super) : first;
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) {
    __m512 total = floats_of(sums + t * kPanel);
    if constexpr (kForm == Form::six_bits) {
      total = _mm512_fmadd_ps(second, floats_of(sums + (kRows + t) * kPanel),
                              _mm512_mul_ps(first, total));
    }
    const __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(scale[t]));
    acc.lanes[t] = _mm512_fmadd_ps(factor, total, acc.lanes[t]);
    if constexpr (kForm == Form::minimum) {
      acc.lanes[t] = _mm512_fmadd_ps(second, _mm512_set1_ps(sum[t]), acc.lanes[t]);
    }
  }
}

// A tile of kRows tokens by a run of groups; acc [kRows][16] goes on from what it holds.
template <Form kForm, int kRows>
void run_tile(const Unpacked* weights, int64_t groups, const Tokens& in, float* acc) {
  constexpr int64_t kEach = kProducts<kForm>;
  constexpr int64_t kAtOnce = kBatch / kEach;
  Dots<kRows> dots;
  Sums<kRows> sums;
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) sums.lanes[t] = _mm512_load_ps(acc + t * kPanel);
  for (int64_t first = 0; first < groups; first += kAtOnce) {
    const int64_t count = min_of(kAtOnce, groups - first);
    const int64_t step = in.stride * kGroup;
    multiply_batch<kForm, kRows>(weights + first, count, in.q + first * step, step, dots);
    const float* scale = in.scale + first * in.stride;
    const float* sum = in.sum + first * in.stride;
    for (int64_t g = 0; g < count; ++g, scale += in.stride, sum += in.stride) {
      add_scaled<kForm, kRows>(sums, dots.sums[g * kEach], weights[first + g], scale, sum);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kRows; ++t) _mm512_store_ps(acc + t * kPanel, sums.lanes[t]);
}

using RunTile = void (*)(const Unpacked*, int64_t groups, const Tokens&, float* acc);

template <Form kForm, size_t... kIndices>
RunTile tile_of(int64_t rows, std::index_sequence<kIndices...>) {
  static constexpr RunTile kTiles[] = {&run_tile<kForm, kIndices + 1>...};
  return kTiles[rows - 1];
}

constexpr Form form_of(WeightType type) {
  if (type == WeightType::q6_k) return Form::six_bits;
  return has_minimum(type) ? Form::minimum : Form::plain;
}

// acc[tile][row][16] = tiles `some` by one panel.
template <WeightType kType>
void multiply_panel(const PackedMatrix& weights, const QuantActs& acts, int64_t panel,
                    const Tiles& tiles, Range some, float* acc) {
  Unpacked unpacked[kChunkGroups];
  const RunTile run = tile_of<form_of(kType)>(tiles.rows, std::make_index_sequence<kMostRows>());
  const int64_t size = tiles.rows * kPanel;
  std::memset(acc, 0, sizeof(float) * static_cast<size_t>((some.end - some.begin) * size));
  const int64_t groups = weights.groups();
  const int64_t chunks = (groups + kChunkGroups - 1) / kChunkGroups;
  for (int64_t c = 0; c < chunks; ++c) {
    const Range chunk{groups * c / chunks, groups * (c + 1) / chunks};
    unpack<kType>(weights.panel(panel), chunk, unpacked);
    for (int64_t i = some.begin; i < some.end; ++i) {
      run(unpacked, chunk.end - chunk.begin, tokens_at(acts, tiles.start(i), chunk.begin),
          acc + (i - some.begin) * size);
    }
  }
}

template <WeightType kType>
void gemm_typed(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
                float* out, int64_t ld, Store how) {
  alignas(64) float acc[kBlockTiles * kMostRows * kPanel];
  const Tiles tiles(tokens);
  const TileUnit unit(kType, tiles.rows);
  for (int64_t first = 0; first < tiles.count; first += kBlockTiles) {
    const Range some{first, min_of(first + kBlockTiles, tiles.count)};
    for (int64_t p = panels.begin; p < panels.end; ++p) {
      multiply_panel<kType>(weights, acts, p, tiles, some, acc);
      const int64_t columns = min_of(kPanel, weights.rows() - p * kPanel);
      for (int64_t i = some.begin; i < some.end; ++i) {
        const int64_t start = tiles.start(i);
        for (int64_t t = tiles.fresh(i); t < start + tiles.rows; ++t) {
          const int64_t row = (i - first) * tiles.rows + t - start;
          store_row(acc + row * kPanel, columns, out + t * ld + p * kPanel, how);
        }
      }
    }
  }
}

// Outputs of a tile before they are quantised: panels of gate and up in turn.
template <WeightType kType>
void swiglu_typed(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
                  const QuantActs& out) {
  constexpr int64_t kSize = kBlockTiles * kMostRows * kPanel;
  alignas(64) float acc[4][kSize];
  const Tiles tiles(tokens);
  const TileUnit unit(kType, tiles.rows);
  for (int64_t first = 0; first < tiles.count; first += kBlockTiles) {
    const Range some{first, min_of(first + kBlockTiles, tiles.count)};
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      for (int64_t p = 0; p < 4; ++p) {
        multiply_panel<kType>(gate_up, acts, 4 * g + p, tiles, some, acc[p]);
      }
      for (int64_t i = some.begin; i < some.end; ++i) {
        for (int64_t t = 0; t < tiles.rows; ++t) {
          alignas(64) float both[2][kGroup];
          const int64_t row = (i - first) * tiles.rows + t;
          for (int64_t p = 0; p < 4; ++p) {
            std::memcpy(both[p % 2] + p / 2 * kPanel, acc[p] + row * kPanel,
                        sizeof(float) * kPanel);
          }
          avx2::silu_mul(both[0], both[1], out, tiles.start(i) + t, {g, g + 1});
        }
      }
    }
  }
}

void gemm(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
          float* out, int64_t ld, Store how) {
  if (tokens.end - tokens.begin < kFewestTokens) {
    return kAvx512VnniKernels.gemm(weights, acts, tokens, panels, out, ld, how);
  }
  with_type(weights.type(), [&](auto type) {
    gemm_typed<type.value>(weights, acts, tokens, panels, out, ld, how);
  });
}

void swiglu(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
            const QuantActs& out) {
  if (tokens.end - tokens.begin < kFewestTokens) {
    return kAvx512VnniKernels.swiglu(gate_up, acts, tokens, groups, out);
  }
  with_type(gate_up.type(),
            [&](auto type) { swiglu_typed<type.value>(gate_up, acts, tokens, groups, out); });
}

}  // namespace

constinit const Kernels kAmxKernels = {Isa::amx,       gemm,          swiglu,
                                       avx2::quantize, avx2::rmsnorm, avx2::silu_mul};

}  // namespace headway

#endif
