// A vector of W floats, in three forms chosen by the macro HEADWAY_ISA of the including file.
//
// Every form lives in a namespace of its own (HEADWAY_ISA_NS), so that no function compiled for a
// wide instruction set can be picked by the linker for a narrow one. `fma` is fused where the
// instruction set has it and never elsewhere: results are fixed per instruction set, not across.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if HEADWAY_ISA > 0
#include <immintrin.h>
#endif

namespace headway::HEADWAY_ISA_NS {

#if HEADWAY_ISA == 2

struct Vec {
  static constexpr int W = 16;
  __m512 v;
  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_half(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Lanes at and after `n` replaced by `fill`.
  Vec keep_first(int n, float fill) const {
    const __mmask16 m = n >= W ? 0xFFFF : static_cast<__mmask16>((1u << n) - 1u);
    return {_mm512_mask_blend_ps(m, _mm512_set1_ps(fill), v)};
  }
};
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, 8)}; }
// 2^n for integral n in [-126, 127].
inline Vec exp2_int(Vec n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
inline uint32_t at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline uint32_t nans(Vec a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
// `a` where x >= limit, else 0.
inline Vec zero_below(Vec a, Vec x, Vec limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), a.v)};
}

#elif HEADWAY_ISA == 1

struct Vec {
  static constexpr int W = 8;
  __m256 v;
  static Vec set1(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_half(uint16_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  Vec keep_first(int n, float fill) const {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i in = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    return {_mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(in))};
  }
};
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec exp2_int(Vec n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
}
inline uint32_t at_least(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
inline uint32_t nans(Vec a) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)));
}
inline Vec zero_below(Vec a, Vec x, Vec limit) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_GE_OQ), a.v)};
}

#else

inline uint16_t float_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  uint32_t a = bits & 0x7FFFFFFF;
  if (a > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (a >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);
  if (a < 0x38800000) {  // subnormal half: adding 0.5 rounds at the right bit
    const float r = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(r) - 0x3F000000u));
  }
  a += 0xFFF + (a >> 13 & 1);
  return static_cast<uint16_t>(sign | ((a - 0x38000000u) >> 13));
}

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));

// Exponent and mantissa moved into place, then scaled by 2^112: exact, subnormals included.
inline Floats to_floats(Halves halves) {
  const Words h = __builtin_convertvector(halves, Words);
  const Words magnitude = (h & 0x7FFF) << 13;
  Floats scaled;
  std::memcpy(&scaled, &magnitude, sizeof scaled);
  scaled *= std::bit_cast<float>(0x77800000u);
  Words bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  const Words special = (h & 0x7C00) == 0x7C00;  // infinite or NaN: all ones
  bits |= (special & 0x7F800000u) | (h & 0x8000) << 16;
  std::memcpy(&scaled, &bits, sizeof scaled);
  return scaled;
}

struct Vec {
  static constexpr int W = 8;
  Floats v;
  static Vec set1(float x) { return {Floats{x, x, x, x, x, x, x, x}}; }
  static Vec load(const float* p) {
    Vec r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
  }
  static Vec load_half(const uint16_t* p) {
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return {to_floats(h)};
  }
  void store(float* p) const { std::memcpy(p, &v, sizeof v); }
  void store_half(uint16_t* p) const {
    for (int i = 0; i < W; ++i) p[i] = float_to_half(v[i]);
  }
  Vec keep_first(int n, float fill) const {
    Vec r = *this;
    for (int i = n < 0 ? 0 : n; i < W; ++i) r.v[i] = fill;
    return r;
  }
};
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec round(Vec a) {  // |a| < 2^22: to nearest even by the adder
  const Vec magic = Vec::set1(12582912.0f);
  return {(a.v + magic.v) - magic.v};
}
inline Vec exp2_int(Vec n) {
  const Ints e = (__builtin_convertvector(n.v, Ints) + 127) << 23;
  Vec r;
  std::memcpy(&r.v, &e, sizeof e);
  return r;
}
inline uint32_t at_least(Vec a, Vec b) {
  uint32_t m = 0;
  for (int i = 0; i < Vec::W; ++i) m |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  return m;
}
inline uint32_t nans(Vec a) {
  uint32_t m = 0;
  for (int i = 0; i < Vec::W; ++i) m |= static_cast<uint32_t>(a.v[i] != a.v[i]) << i;
  return m;
}
inline Vec zero_below(Vec a, Vec x, Vec limit) {
  return {x.v >= limit.v ? a.v : Vec::set1(0.0f).v};
}

#endif

// Sum and maximum of the lanes. The sum is always taken in the same tree: upper half to lower half.
#if HEADWAY_ISA > 0
inline float reduce_add(__m256 a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float reduce_max(__m256 a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
#endif
#if HEADWAY_ISA == 2
inline float reduce_add(Vec a) {
  return reduce_add(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
inline float reduce_max(Vec a) {
  return reduce_max(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
#elif HEADWAY_ISA == 1
inline float reduce_add(Vec a) { return reduce_add(a.v); }
inline float reduce_max(Vec a) { return reduce_max(a.v); }
#else
inline float reduce_add(Vec a) {
  for (int n = Vec::W / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
  return a.v[0];
}
inline float reduce_max(Vec a) {
  float m = a.v[0];
  for (int i = 1; i < Vec::W; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
#endif

// e^x to about 1 ulp for x <= 88; exactly 0 below -87. Range reduction by ln 2 in two parts and a
// polynomial of degree 7 (Taylor, |r| <= ln(2)/2). The same function serves full vectors and tails.
inline Vec exp(Vec x) {
  const Vec low = Vec::set1(-87.0f);
  const Vec clamped = max(x, low);
  const Vec n = round(clamped * Vec::set1(1.44269504f));
  Vec r = fma(n, Vec::set1(-0.693359375f), clamped);
  r = fma(n, Vec::set1(2.12194440e-4f), r);
  Vec p = Vec::set1(1.0f / 5040.0f);
  p = fma(p, r, Vec::set1(1.0f / 720.0f));
  p = fma(p, r, Vec::set1(1.0f / 120.0f));
  p = fma(p, r, Vec::set1(1.0f / 24.0f));
  p = fma(p, r, Vec::set1(1.0f / 6.0f));
  p = fma(p, r, Vec::set1(0.5f));
  p = fma(p, r, Vec::set1(1.0f));
  p = fma(p, r, Vec::set1(1.0f));
  return zero_below(p * exp2_int(n), x, low);
}

}  // namespace headway::HEADWAY_ISA_NS
