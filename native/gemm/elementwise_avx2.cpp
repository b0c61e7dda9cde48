// Quantisation, RMS norm and SiLU of the AVX2 and AVX-512 paths.
#if defined(__x86_64__)

#include <immintrin.h>

#include "elementwise.hpp"
#include "paths.hpp"

namespace headway::avx2 {
namespace {

constexpr int kVectors = kGroup / 8;

// One group of floats.
struct GroupValues {
  __m256 part[kVectors];
};

[[gnu::always_inline]] inline uint32_t largest_magnitude(const GroupValues& x) {
  // As integers: the order of the magnitudes, with NaN above all.
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i most = _mm256_setzero_si256();
  for (const __m256 part : x.part) {
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(part), magnitude));
  }
  __m128i best = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0x4E));
  best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(best));
}

// The group's 32 quants in order.
[[gnu::always_inline]] inline __m256i round_scaled(const GroupValues& x, float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i rounded[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x.part[i], factor));
  }
  // Packing works within 128-bit halves: the permutation puts every four values in their place.
  const __m256i words0 = _mm256_packs_epi32(rounded[0], rounded[1]);
  const __m256i words1 = _mm256_packs_epi32(rounded[2], rounded[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words0, words1), order);
}

[[gnu::always_inline]] inline void quantize_group(const GroupValues& x, const QuantActs& out,
                                                  int64_t token, int64_t g) {
  const GroupScale scale = group_scale(largest_magnitude(x));
  __m256i q = _mm256_setzero_si256();
  if (scale.inverse != 0.0F) q = round_scaled(x, scale.inverse);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + out.at(token, g) * kGroup), q);
  // Sums of four, then of the 16 in each 128-bit half.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
  store_group(scale.scale, _mm256_cvtsi256_si32(sums), _mm256_extract_epi32(sums, 4), out, token,
              g);
}

// Lane k of the 32 adds up elements k, k + 32, ...; then lanes fold by halves.
float sum_of_squares(const float* x, int64_t cols) {
  GroupValues lanes;
  for (__m256& part : lanes.part) part = _mm256_setzero_ps();
  for (int64_t at = 0; at < cols; at += kGroup) {
    for (int i = 0; i < kVectors; ++i) {
      const __m256 value = _mm256_loadu_ps(x + at + 8 * i);
      lanes.part[i] = _mm256_fmadd_ps(value, value, lanes.part[i]);
    }
  }
  const __m256 by16 = _mm256_add_ps(lanes.part[0], lanes.part[2]);
  const __m256 by16_high = _mm256_add_ps(lanes.part[1], lanes.part[3]);
  const __m256 by8 = _mm256_add_ps(by16, by16_high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

__m256 exp_clamped(__m256 x) {
  // Second operands win when one is NaN, which so goes through.
  x = _mm256_min_ps(_mm256_set1_ps(kExpHigh), x);
  x = _mm256_max_ps(_mm256_set1_ps(kExpLow), x);
  const __m256 magic = _mm256_set1_ps(kRoundToInteger);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), magic);
  const __m256 n = _mm256_sub_ps(shifted, magic);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(kExpTerms[0]);
  for (int i = 1; i < kExpTermCount; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpTerms[i]));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}

}  // namespace

void quantize(const float* x, const QuantActs& out, int64_t token, Range groups) {
  GroupValues values;
  for (int64_t g = groups.begin; g < groups.end; ++g, x += kGroup) {
    for (int i = 0; i < kVectors; ++i) values.part[i] = _mm256_loadu_ps(x + 8 * i);
    quantize_group(values, out, token, g);
  }
}

void rmsnorm(const float* x, const float* weight, float eps, const QuantActs& out, int64_t token) {
  const __m256 factor = _mm256_set1_ps(rms_factor(sum_of_squares(x, out.cols), out.cols, eps));
  GroupValues values;
  for (int64_t g = 0; g < out.groups(); ++g) {
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = g * kGroup + 8 * i;
      values.part[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + at), factor),
                                     _mm256_loadu_ps(weight + at));
    }
    quantize_group(values, out, token, g);
  }
}

void silu_mul(const float* gate, const float* up, const QuantActs& out, int64_t token,
              Range groups) {
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 sign = _mm256_set1_ps(-0.0F);
  GroupValues values;
  for (int64_t g = groups.begin; g < groups.end; ++g, gate += kGroup, up += kGroup) {
    for (int i = 0; i < kVectors; ++i) {
      const __m256 x = _mm256_loadu_ps(gate + 8 * i);
      const __m256 denominator = _mm256_add_ps(one, exp_clamped(_mm256_xor_ps(x, sign)));
      values.part[i] = _mm256_mul_ps(_mm256_div_ps(x, denominator), _mm256_loadu_ps(up + 8 * i));
    }
    quantize_group(values, out, token, g);
  }
}

}  // namespace headway::avx2

#endif
