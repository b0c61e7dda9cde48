// The AVX-512 VNNI path: one zmm register holds a step of a panel, 16 columns by 4 inputs.
#if defined(__x86_64__)

#include <immintrin.h>

#include "driver.hpp"
#include "paths.hpp"

namespace headway {
namespace {

// Bytes between the weights in use and those being brought in.
constexpr size_t kPrefetchAhead = 4096;

template <int kTile>
struct Dots {
  __m512i lanes[kTile];
};

__m512i broadcast(const void* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

__m512 halves_at(const uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

__m512i load(const uint8_t* at) { return _mm512_loadu_si512(at); }

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
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i both = load(quants + 64 * v);
    add_step<kTile>(dots, _mm512_and_si512(both, mask), q + 4 * v);
    add_step<kTile>(dots, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask), q + 16 + 4 * v);
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

// Scales of one group of a panel, all but Q6_K: weight = d * q + m.
struct Scales {
  __m512 d;
  __m512 m;
};

__m512 bytes_at(const uint8_t* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

template <WeightType kType>
[[gnu::always_inline]] inline Scales scales_at(const uint8_t* at, const uint8_t* supers) {
  if constexpr (kType == WeightType::q4_1) return {halves_at(at), halves_at(at + 32)};
  if constexpr (kType == WeightType::q4_k) {
    const __m512 sign = _mm512_set1_ps(-0.0F);
    const __m512 m = _mm512_mul_ps(halves_at(supers + 32), bytes_at(at + 16));
    return {_mm512_mul_ps(halves_at(supers), bytes_at(at)), _mm512_xor_ps(m, sign)};
  }
  return {halves_at(at), _mm512_setzero_ps()};
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
    if constexpr (kType == WeightType::q4_1 || kType == WeightType::q4_k) {
      const __m512 sum = _mm512_set1_ps(args.sum[index + t]);
      acc.lanes[t] = _mm512_fmadd_ps(weight.m, sum, acc.lanes[t]);
    }
  }
}

// Step kStep of one half of a 6-bit group.
template <int kHalf, int kStep>
[[gnu::always_inline]] inline __m512i six_bits(const uint8_t* quants) {
  const __m512i both = load(quants + 64 * kStep);
  const __m512i low = kHalf == 0 ? both : _mm512_srli_epi16(both, 4);
  const __m512i high = load(quants + 256 + 64 * kHalf);
  constexpr unsigned kLeft = kStep < 2 ? 4U - 2U * kStep : 0U;
  constexpr unsigned kRight = kStep < 2 ? 0U : 2U * kStep - 4U;
  const __m512i top = kStep < 2 ? _mm512_slli_epi16(high, kLeft) : _mm512_srli_epi16(high, kRight);
  return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)),
                         _mm512_and_si512(top, _mm512_set1_epi8(0x30)));
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
  const auto* pairs = reinterpret_cast<const __m256i*>(at + panel_layout(WeightType::q6_k).quants);
  const __m512i scales = _mm512_cvtepi8_epi16(_mm256_loadu_si256(pairs));
  const __m512 scale0 = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(scales, 16), 16));
  const __m512 scale1 = _mm512_cvtepi32_ps(_mm512_srai_epi32(scales, 16));
  const __m512 d = halves_at(supers);
  Dots<kTile> dots;
  Sums<kTile> totals;
  dot_half<0, kTile>(dots, at, q, args.halves + 2 * index);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    totals.lanes[t] = _mm512_mul_ps(scale0, _mm512_cvtepi32_ps(dots.lanes[t]));
  }
  dot_half<1, kTile>(dots, at, q, args.halves + 2 * index);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    const __m512 total =
        _mm512_fmadd_ps(scale1, _mm512_cvtepi32_ps(dots.lanes[t]), totals.lanes[t]);
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

void gemm(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
          float* out, int64_t ld, Store how) {
  multiply<Vnni>(weights, acts, tokens, panels, out + tokens.begin * ld + panels.begin * kPanel, ld,
                 how);
}

void swiglu(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
            const QuantActs& out) {
  swiglu_by_blocks(multiply<Vnni>, avx2::silu_mul, gate_up, acts, tokens, groups, out);
}

}  // namespace

constinit const Kernels kAvx512VnniKernels = {Isa::avx512vnni, gemm,          swiglu,
                                              avx2::quantize,  avx2::rmsnorm, avx2::silu_mul};

}  // namespace headway

#endif
