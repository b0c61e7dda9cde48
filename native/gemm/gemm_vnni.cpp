// The AVX-512 VNNI path: one zmm register holds a step of a panel, 16 columns by 4 inputs.
#if defined(__x86_64__)

#include "avx512.hpp"
#include "driver.hpp"

namespace headway {
namespace {

// Bytes between the weights in use and those being brought in.
constexpr size_t kPrefetchAhead = 4096;

template <int kTile>
struct Dots {
  __m512i lanes[kTile];
};

// dots += step (bytes of 16 columns) times the four activations at q of each token.
template <int kTile>
[[gnu::always_inline]] inline void add_step(Dots<kTile>& dots, __m512i step, const int8_t* q) {
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    dots.lanes[t] = _mm512_dpbusd_epi32(dots.lanes[t], step, broadcast(q + t * kGroup));
  }
}

template <int kTile>
[[gnu::always_inline]] inline void add_nibbles(Dots<kTile>& dots, const uint8_t* quants,
                                               const int8_t* q) {
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i both = load(quants + 64 * v);
    add_step<kTile>(dots, low_nibbles(both), q + 4 * v);
    add_step<kTile>(dots, high_nibbles(both), q + 16 + 4 * v);
  }
}

template <int kTile>
[[gnu::always_inline]] inline void add_bytes(Dots<kTile>& dots, const uint8_t* quants,
                                             const int8_t* q) {
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) add_step<kTile>(dots, load(quants + 64 * v), q + 4 * v);
}

struct Vnni {
  // As many as keep their sums, dot products and the group's weights in 32 registers.
  template <WeightType kType>
  static constexpr int max_tile() {
    return kType == WeightType::q6_k ? 8 : 12;
  }

  template <WeightType>
  static constexpr bool widens() {
    return false;
  }

  template <WeightType kType, int kTile>
  static void tile(const TileArgs& args);
};

// Start of the dot products: the weights' offset times the sums of the activations.
template <WeightType kType, int kTile>
[[gnu::always_inline]] inline void start(Dots<kTile>& dots, const int32_t* negative) {
  constexpr int kShift = kType == WeightType::q4_0 ? 3 : 7;
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    if constexpr (kType == WeightType::q4_0 || kType == WeightType::q8_0) {
      dots.lanes[t] = _mm512_slli_epi32(broadcast(negative + t), kShift);
    } else {
      dots.lanes[t] = _mm512_setzero_si512();
    }
  }
}

template <int kTile>
struct Sums {
  __m512 lanes[kTile];
};

template <WeightType kType, int kTile>
[[gnu::always_inline]] inline void add_group(Sums<kTile>& acc, const uint8_t* at,
                                             const uint8_t* supers, const int8_t* q,
                                             const TileArgs& args, int64_t index) {
  Dots<kTile> dots;
  start<kType, kTile>(dots, args.negative + index);
  if constexpr (kType == WeightType::q8_0) {
    add_bytes<kTile>(dots, at, q);
  } else {
    add_nibbles<kTile>(dots, at, q);
  }
  const Scales weight = scales_at<kType>(at + panel_layout(kType).quants, supers);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    const __m512 scale = _mm512_mul_ps(weight.d, _mm512_set1_ps(args.scale[index + t]));
    acc.lanes[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dots.lanes[t]), acc.lanes[t]);
    if constexpr (has_minimum(kType)) {
      const __m512 sum = _mm512_set1_ps(args.sum[index + t]);
      acc.lanes[t] = _mm512_fmadd_ps(weight.m, sum, acc.lanes[t]);
    }
  }
}

// Dot products of one half of a 6-bit group, the offset of 32 taken off.
template <int kHalf, int kTile>
[[gnu::always_inline]] inline void dot_half(Dots<kTile>& dots, const uint8_t* quants,
                                            const int8_t* q, const int16_t* halves) {
  // Multiplies the one half sum by -32 and the other by 0.
  const __m512i offset = _mm512_set1_epi32(kHalf == 0 ? 0xFFE0 : static_cast<int>(0xFFE00000U));
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    dots.lanes[t] = _mm512_madd_epi16(broadcast(halves + 2 * t), offset);
  }
  const int8_t* from = q + 16 * kHalf;
  add_step<kTile>(dots, six_bits<kHalf, 0>(quants), from);
  add_step<kTile>(dots, six_bits<kHalf, 1>(quants), from + 4);
  add_step<kTile>(dots, six_bits<kHalf, 2>(quants), from + 8);
  add_step<kTile>(dots, six_bits<kHalf, 3>(quants), from + 12);
}

// The scaled halves and their sum are below 2^24, hence exact as floats.
template <int kTile>
[[gnu::always_inline]] inline void add_six_bits(Sums<kTile>& acc, const uint8_t* at,
                                                const uint8_t* supers, const int8_t* q,
                                                const TileArgs& args, int64_t index) {
  const auto [side0, side1] = side_scales_at(at + panel_layout(WeightType::q6_k).quants).side;
  const __m512 d = halves_at(supers);
  Dots<kTile> dots;
  Sums<kTile> totals;
  dot_half<0, kTile>(dots, at, q, args.halves + 2 * index);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    totals.lanes[t] = _mm512_mul_ps(side0, _mm512_cvtepi32_ps(dots.lanes[t]));
  }
  dot_half<1, kTile>(dots, at, q, args.halves + 2 * index);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    const __m512 total = _mm512_fmadd_ps(side1, _mm512_cvtepi32_ps(dots.lanes[t]), totals.lanes[t]);
    const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(args.scale[index + t]));
    acc.lanes[t] = _mm512_fmadd_ps(scale, total, acc.lanes[t]);
  }
}

template <WeightType kType, int kTile>
void Vnni::tile(const TileArgs& args) {
  constexpr PanelLayout kLayout = panel_layout(kType);
  constexpr size_t kBlock = kLayout.quants + kLayout.scales;
  Sums<kTile> acc;
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) acc.lanes[t] = _mm512_setzero_ps();
  const uint8_t* at = args.panel;
  const uint8_t* supers = at;
  const int8_t* q = args.q;
  for (int64_t g = 0; g < args.groups; ++g) {
    if (is_k_quant(kType) && g % 8 == 0) {
      supers = at;
      at += kLayout.supers;
    }
    if (args.prefetch) {
#pragma GCC unroll 16
      for (size_t line = 0; line < kBlock; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchAhead + line, _MM_HINT_T0);
      }
    }
    if constexpr (kType == WeightType::q6_k) {
      add_six_bits<kTile>(acc, at, supers, q, args, g * args.stride);
    } else {
      add_group<kType, kTile>(acc, at, supers, q, args, g * args.stride);
    }
    at += kBlock;
    q += args.stride * kGroup;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) _mm512_store_ps(args.acc + t * kPanel, acc.lanes[t]);
}

}  // namespace

constinit const Kernels kAvx512VnniKernels = kernels_of<Vnni>(Isa::avx512vnni);

}  // namespace headway

#endif
