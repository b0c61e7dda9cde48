// The AVX2 path: a step of a panel is two registers of 8 columns by 4 inputs.
//
// Unsigned 4-bit weights times int8 activations are added up in 16 bits over the 8 steps of a group
// (15 * 127 * 2 * 8 = 30,480 fits) and widened once; 6-bit ones are widened after every second step
// (63 * 127 * 2 * 2 = 32,004). 8-bit weights are multiplied in 16 bits, by activations that were
// widened before: as two planes of nibbles they would take as many products, and another addition.
#if defined(__x86_64__)

#include <immintrin.h>

#include "driver.hpp"

namespace headway {
namespace {

// Bytes between the weights in use and those being brought in.
constexpr size_t kPrefetchAhead = 4096;
constexpr int kHalf = 8;  // columns in a register

// dot += the products of unsigned `weights` and signed `activations`, pairs added, in 16 bits.
// Assembly, because GCC otherwise moves the products apart from their additions and spills them,
// which costs a quarter of the speed.
[[gnu::always_inline]] inline void add_products(__m256i& dot, __m256i weights,
                                                __m256i activations) {
  __m256i products;
  __asm__ volatile(
      "vpmaddubsw %[a], %[w], %[p]\n\t"
      "vpaddw %[p], %[dot], %[dot]"
      : [dot] "+x"(dot), [p] "=&x"(products)
      : [w] "x"(weights), [a] "x"(activations));
}

// The same for the first step of a group.
[[gnu::always_inline]] inline void set_products(__m256i& dot, __m256i weights,
                                                __m256i activations) {
  __asm__ volatile("vpmaddubsw %[a], %[w], %[dot]"
                   : [dot] "=x"(dot)
                   : [w] "x"(weights), [a] "x"(activations));
}

// total += the products of 16-bit `weights` and `activations`, pairs added, in 32 bits.
[[gnu::always_inline]] inline void add_wide_products(__m256i& total, __m256i weights,
                                                     __m256i activations) {
  __m256i products;
  __asm__ volatile(
      "vpmaddwd %[a], %[w], %[p]\n\t"
      "vpaddd %[p], %[total], %[total]"
      : [total] "+x"(total), [p] "=&x"(products)
      : [w] "x"(weights), [a] "x"(activations));
}

[[gnu::always_inline]] inline __m256i broadcast(const void* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm256_set1_epi32(four);
}

[[gnu::always_inline]] inline __m256i load(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

[[gnu::always_inline]] inline __m256 halves_at(const uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

[[gnu::always_inline]] inline __m256 bytes_at(const uint8_t* at) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

[[gnu::always_inline]] inline __m256i low_nibbles(__m256i both) {
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

[[gnu::always_inline]] inline __m256i high_nibbles(__m256i both) {
  return low_nibbles(_mm256_srli_epi16(both, 4));
}

[[gnu::always_inline]] inline __m256i widen(__m256i dot) {
  return _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
}

// Scales of 8 columns of a group, all but Q6_K: weight = d * q + m.
struct Scales {
  __m256 d;
  __m256 m;
};

template <WeightType kType>
[[gnu::always_inline]] inline Scales scales_at(const uint8_t* at, const uint8_t* supers, int half) {
  if constexpr (kType == WeightType::q4_1) {
    return {halves_at(at + 16 * half), halves_at(at + 32 + 16 * half)};
  } else if constexpr (kType == WeightType::q4_k) {
    const __m256 m =
        _mm256_mul_ps(halves_at(supers + 32 + 16 * half), bytes_at(at + 16 + 8 * half));
    return {_mm256_mul_ps(halves_at(supers + 16 * half), bytes_at(at + 8 * half)),
            _mm256_xor_ps(m, _mm256_set1_ps(-0.0F))};
  } else {
    return {halves_at(at + 16 * half), _mm256_setzero_ps()};
  }
}

// acc += (weight scale * activation scale) * total, then the minimum's share.
template <WeightType kType>
[[gnu::always_inline]] inline void add_scaled(float* acc, __m256i total, const Scales& weight,
                                              const float* scale, const float* sum) {
  __m256 value = _mm256_load_ps(acc);
  const __m256 factor = _mm256_mul_ps(weight.d, _mm256_broadcast_ss(scale));
  value = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(total), value);
  if constexpr (kType == WeightType::q4_1 || kType == WeightType::q4_k) {
    value = _mm256_fmadd_ps(weight.m, _mm256_broadcast_ss(sum), value);
  }
  _mm256_store_ps(acc, value);
}

template <int kTile>
struct Dots {
  __m256i lanes[kTile][2];
};

// dots (+)= step; the first one of a group sets them.
template <bool kFirst, int kTile>
[[gnu::always_inline]] inline void add_step(Dots<kTile>& dots, __m256i first, __m256i second,
                                            const int8_t* q) {
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    const __m256i a = broadcast(q + t * kGroup);
    if constexpr (kFirst) {
      set_products(dots.lanes[t][0], first, a);
      set_products(dots.lanes[t][1], second, a);
    } else {
      add_products(dots.lanes[t][0], first, a);
      add_products(dots.lanes[t][1], second, a);
    }
  }
}

// One group of a 4-bit panel.
template <WeightType kType, int kTile>
[[gnu::always_inline]] inline void add_four_bits(const TileArgs& args, const uint8_t* at,
                                                 const uint8_t* supers, const int8_t* q,
                                                 int64_t index) {
  Dots<kTile> dots;
  add_step<true, kTile>(dots, low_nibbles(load(at)), low_nibbles(load(at + 32)), q);
  add_step<false, kTile>(dots, high_nibbles(load(at)), high_nibbles(load(at + 32)), q + 16);
#pragma GCC unroll 4
  for (int v = 1; v < 4; ++v) {
    const uint8_t* step = at + 64 * v;
    add_step<false, kTile>(dots, low_nibbles(load(step)), low_nibbles(load(step + 32)), q + 4 * v);
    add_step<false, kTile>(dots, high_nibbles(load(step)), high_nibbles(load(step + 32)),
                           q + 16 + 4 * v);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Scales weight = scales_at<kType>(at + 256, supers, half);
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      __m256i total = widen(dots.lanes[t][half]);
      if constexpr (kType == WeightType::q4_0) {
        const __m256i offset = _mm256_slli_epi32(broadcast(args.negative + index + t), 3);
        total = _mm256_add_epi32(total, offset);
      }
      add_scaled<kType>(args.acc + t * kPanel + half * kHalf, total, weight, args.scale + index + t,
                        args.sum + index + t);
    }
  }
}

// Step `v` of an 8-bit group: inputs 0 and 2 of the step in 16 bits, or 1 and 3.
template <bool kOdd>
[[gnu::always_inline]] inline __m256i every_other(const uint8_t* at) {
  if constexpr (kOdd) return _mm256_srli_epi16(load(at), 8);
  return _mm256_and_si256(load(at), _mm256_set1_epi16(0xFF));
}

// totals += products of half a step, 16 columns.
template <bool kOdd, int kTile>
[[gnu::always_inline]] inline void add_half_step(Dots<kTile>& totals, const uint8_t* at,
                                                 const int16_t* wide) {
  const __m256i first = every_other<kOdd>(at), second = every_other<kOdd>(at + 32);
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    const __m256i a = broadcast(wide + t * kGroup + 2 * kOdd);
    add_wide_products(totals.lanes[t][0], first, a);
    add_wide_products(totals.lanes[t][1], second, a);
  }
}

// One group of an 8-bit panel. `wide`: activations as `widen` of driver.hpp leaves them.
template <int kTile>
[[gnu::always_inline]] inline void add_eight_bits(const TileArgs& args, const uint8_t* at,
                                                  const int16_t* wide, int64_t index) {
  Dots<kTile> totals;
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {  // weights are 128 too large
    totals.lanes[t][0] = _mm256_slli_epi32(broadcast(args.negative + index + t), 7);
    totals.lanes[t][1] = totals.lanes[t][0];
  }
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) {
    add_half_step<false, kTile>(totals, at + 64 * v, wide + 4 * v);
    add_half_step<true, kTile>(totals, at + 64 * v, wide + 4 * v);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const Scales weight = scales_at<WeightType::q8_0>(at + 512, nullptr, half);
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t)
      add_scaled<WeightType::q8_0>(args.acc + t * kPanel + half * kHalf, totals.lanes[t][half],
                                   weight, args.scale + index + t, nullptr);
  }
}

// Step `v` of half `side` of a 6-bit group, 8 columns.
template <int kSide, int kStep>
[[gnu::always_inline]] inline __m256i six_bits(const uint8_t* at, int half) {
  const __m256i both = load(at + 64 * kStep + 32 * half);
  const __m256i nibbles = kSide == 0 ? low_nibbles(both) : high_nibbles(both);
  const __m256i high = load(at + 256 + 64 * kSide + 32 * half);
  constexpr int kLeft = kStep < 2 ? 4 - 2 * kStep : 0;
  constexpr int kRight = kStep < 2 ? 0 : 2 * kStep - 4;
  const __m256i top = kStep < 2 ? _mm256_slli_epi16(high, kLeft) : _mm256_srli_epi16(high, kRight);
  return _mm256_or_si256(nibbles, _mm256_and_si256(top, _mm256_set1_epi8(0x30)));
}

// totals += scale of the side * products of steps kStep and kStep + 1.
template <int kSide, int kStep, int kTile>
[[gnu::always_inline]] inline void add_two_steps(__m256i (&totals)[kTile], const uint8_t* at,
                                                 int half, const int8_t* q, __m256i scale) {
  const __m256i first = six_bits<kSide, kStep>(at, half);
  const __m256i second = six_bits<kSide, kStep + 1>(at, half);
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    const int8_t* from = q + t * kGroup + 16 * kSide + 4 * kStep;
    __m256i dot = _mm256_maddubs_epi16(first, broadcast(from));
    dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(second, broadcast(from + 4)));
    totals[t] = _mm256_add_epi32(totals[t], _mm256_madd_epi16(dot, scale));
  }
}

// One group of a 6-bit panel. Scales come as pairs (side 0, side 1) of 16 bits a column: multiplied
// with the pair of half sums they give the offset, and each one twice weighs its side's products.
template <int kTile>
[[gnu::always_inline]] inline void add_six_bits(const TileArgs& args, const uint8_t* at,
                                                const uint8_t* supers, const int8_t* q,
                                                int64_t index) {
#pragma GCC unroll 1
  for (int half = 0; half < 2; ++half) {
    const auto* bytes = reinterpret_cast<const __m128i*>(at + 384 + 16 * half);
    const __m256i pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes));
    const __m256i high = _mm256_slli_epi32(pairs, 16);
    const __m256i side0 = _mm256_or_si256(_mm256_srli_epi32(high, 16), high);
    const __m256i side1 = _mm256_blend_epi16(_mm256_srli_epi32(pairs, 16), pairs, 0xAA);
    __m256i totals[kTile];
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const __m256i sums = _mm256_madd_epi16(pairs, broadcast(args.halves + 2 * (index + t)));
      totals[t] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sums, 5));
    }
    add_two_steps<0, 0, kTile>(totals, at, half, q, side0);
    add_two_steps<0, 2, kTile>(totals, at, half, q, side0);
    add_two_steps<1, 0, kTile>(totals, at, half, q, side1);
    add_two_steps<1, 2, kTile>(totals, at, half, q, side1);
    const Scales weight = {halves_at(supers + 16 * half), _mm256_setzero_ps()};
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      add_scaled<WeightType::q6_k>(args.acc + t * kPanel + half * kHalf, totals[t], weight,
                                   args.scale + index + t, nullptr);
    }
  }
}

struct Avx2 {
  // As many as keep two dot products a token, the weights and a product in 16 registers.
  template <WeightType kType>
  static constexpr int max_tile() {
    return kType == WeightType::q8_0 ? 6 : 5;
  }

  template <WeightType kType>
  static constexpr bool widens() {
    return kType == WeightType::q8_0;
  }

  template <WeightType kType, int kTile>
  static void tile(const TileArgs& args) {
    constexpr PanelLayout kLayout = panel_layout(kType);
    constexpr size_t kBlock = kLayout.quants + kLayout.scales;
    std::memset(args.acc, 0, sizeof(float) * kTile * kPanel);
    const uint8_t* at = args.panel;
    const uint8_t* supers = at;
    const int8_t* q = args.q;
    const int16_t* wide = args.wide;
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
      const int64_t index = g * args.stride;
      if constexpr (kType == WeightType::q8_0) {
        add_eight_bits<kTile>(args, at, wide, index);
        wide += args.wide_stride * kGroup;
      } else if constexpr (kType == WeightType::q6_k) {
        add_six_bits<kTile>(args, at, supers, q, index);
      } else {
        add_four_bits<kType, kTile>(args, at, supers, q, index);
      }
      at += kBlock;
      q += args.stride * kGroup;
    }
  }
};

}  // namespace

constinit const Kernels kAvx2Kernels = kernels_of<Avx2>(Isa::avx2);

}  // namespace headway

#endif
