// What the AVX-512 VNNI and AMX paths read from a panel. Static for the reason given in layout.hpp.
#pragma once

#include <immintrin.h>

#include "layout.hpp"

namespace headway {

static inline __m512i broadcast(const void* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

static inline __m512i load(const uint8_t* at) { return _mm512_loadu_si512(at); }

static inline __m512 halves_at(const uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

static inline __m512 bytes_at(const uint8_t* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

static inline __m512i low_nibbles(__m512i both) {
  return _mm512_and_si512(both, _mm512_set1_epi8(15));
}

static inline __m512i high_nibbles(__m512i both) { return low_nibbles(_mm512_srli_epi16(both, 4)); }

// Scales of one group of a panel, all but Q6_K: weight = d * q + m.
struct Scales {
  __m512 d;
  __m512 m;
};

static constexpr bool has_minimum(WeightType type) {
  return type == WeightType::q4_1 || type == WeightType::q4_k;
}

template <WeightType kType>
[[gnu::always_inline]] static inline Scales scales_at(const uint8_t* at, const uint8_t* supers) {
  if constexpr (kType == WeightType::q4_1) return {halves_at(at), halves_at(at + 32)};
  if constexpr (kType == WeightType::q4_k) {
    const __m512 sign = _mm512_set1_ps(-0.0F);
    const __m512 m = _mm512_mul_ps(halves_at(supers + 32), bytes_at(at + 16));
    return {_mm512_mul_ps(halves_at(supers), bytes_at(at)), _mm512_xor_ps(m, sign)};
  }
  return {halves_at(at), _mm512_setzero_ps()};
}

// The scales of the two halves of a 6-bit group, 16 columns.
struct SideScales {
  __m512 side[2];
};

static inline SideScales side_scales_at(const uint8_t* at) {
  const auto* bytes = reinterpret_cast<const __m256i*>(at);
  const __m512i pairs = _mm512_cvtepi8_epi16(_mm256_loadu_si256(bytes));
  return {{_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16)),
           _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16))}};
}

// Step kStep (0..3) of one half of a 6-bit group.
template <int kSide, int kStep>
[[gnu::always_inline]] static inline __m512i six_bits(const uint8_t* quants) {
  const __m512i both = load(quants + 64 * kStep);
  const __m512i nibbles = kSide == 0 ? low_nibbles(both) : high_nibbles(both);
  const __m512i high = load(quants + 256 + 64 * kSide);
  constexpr unsigned kLeft = kStep < 2 ? 4U - 2U * kStep : 0U;
  constexpr unsigned kRight = kStep < 2 ? 0U : 2U * kStep - 4U;
  const __m512i top = kStep < 2 ? _mm512_slli_epi16(high, kLeft) : _mm512_srli_epi16(high, kRight);
  return _mm512_or_si512(nibbles, _mm512_and_si512(top, _mm512_set1_epi8(0x30)));
}

}  // namespace headway
