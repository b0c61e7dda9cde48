// Arithmetic that is not a matrix product, in the one form that all instruction paths follow.
// Functions are static for the reason given in layout.hpp.
#pragma once

#include <cmath>
#include <limits>

#include "layout.hpp"

namespace headway {

struct GroupScale {
  float scale;
  float inverse;  // 0: every quant of the group is 0
};

// From the bits of the largest magnitude of a group. A group that is not finite gets the scale NaN,
// so that the outputs it touches are NaN rather than plausible; one too small for an inverse is 0.
static inline GroupScale group_scale(uint32_t largest_bits) {
  if (largest_bits >= 0x7F800000U) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  float largest;
  std::memcpy(&largest, &largest_bits, 4);
  if (largest < 1e-30F) return {0.0F, 0.0F};
  return {largest / 127.0F, 127.0F / largest};
}

static inline void store_group(float scale, int32_t half0, int32_t half1, const QuantActs& out,
                               int64_t token, int64_t g) {
  const int64_t at = out.at(token, g);
  out.scale[at] = scale;
  out.sum[at] = scale * static_cast<float>(half0 + half1);
  out.negative[at] = -(half0 + half1);
  out.halves[2 * at] = static_cast<int16_t>(half0);
  out.halves[2 * at + 1] = static_cast<int16_t>(half1);
}

static inline float rms_factor(float sum_of_squares, int64_t cols, float eps) {
  return 1.0F / std::sqrt(sum_of_squares / static_cast<float>(cols) + eps);
}

// e^x = 2^n e^r with n = round(x / ln 2): ln 2 in two parts so that n * kLn2High is exact, and the
// Taylor terms of e^r to the sixth power, highest first (relative error below 2e-7 for
// |r| <= ln 2 / 2). Adding kRoundToInteger rounds to an integer and leaves it in the low bits.
static constexpr float kExpLow = -87.0F;
static constexpr float kExpHigh = 88.0F;
static constexpr float kLog2E = 1.44269504F;
static constexpr float kLn2High = 0.693359375F;
static constexpr float kLn2Low = -2.12194440e-4F;
static constexpr float kRoundToInteger = 12582912.0F;
static constexpr int kExpTermCount = 7;
static constexpr float kExpTerms[kExpTermCount] = {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6,
                                                   0.5F,       1.0F,       1.0F};

static inline void store_row(const float* acc, int64_t columns, float* out, Store how) {
  if (columns == kPanel && how == Store::assign) {
    std::memcpy(out, acc, sizeof(float) * kPanel);
    return;
  }
  for (int64_t c = 0; c < columns; ++c) out[c] = how == Store::add ? out[c] + acc[c] : acc[c];
}

// Where the products of a range of panels go, the first row being that of the first token.
struct Rows {
  float* first;
  int64_t ld;
  int64_t pair;  // 0: panels side by side; else an odd one is this far from the one before it
};

// Where panel i of the range begins.
static inline float* panel_of(const Rows& rows, int64_t i) {
  return rows.first + (rows.pair == 0 ? i * kPanel : i / 2 * kPanel + i % 2 * rows.pair);
}

using Multiply = void (*)(const PackedMatrix&, const QuantActs&, Range tokens, Range panels,
                          const Rows& out, Store);
using SiluMul = void (*)(const float* gate, const float* up, const QuantActs&, int64_t token,
                         Range groups);

// Kernels::swiglu over a path's own functions: one group of outputs for a block of tokens at a time,
// so that gate and up never leave the L1 cache. Its four panels (gate, up, gate, up) are asked for
// at once: what a path prepares for a call serves them all.
static inline void swiglu_by_blocks(Multiply multiply, SiluMul silu_mul,
                                    const PackedMatrix& gate_up, const QuantActs& acts,
                                    Range tokens, Range groups, const QuantActs& out) {
  constexpr int64_t kBlockTokens = 64;
  alignas(64) float both[2][kBlockTokens * kGroup];
  const Rows rows{both[0], kGroup, kBlockTokens * kGroup};
  for (int64_t t = tokens.begin; t < tokens.end; t += kBlockTokens) {
    const int64_t end = min_of(t + kBlockTokens, tokens.end);
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      multiply(gate_up, acts, {t, end}, {4 * g, 4 * g + 4}, rows, Store::assign);
      for (int64_t i = t; i < end; ++i) {
        const int64_t at = (i - t) * kGroup;
        silu_mul(both[0] + at, both[1] + at, out, i, {g, g + 1});
      }
    }
  }
}

}  // namespace headway
