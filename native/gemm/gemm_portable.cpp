// The path for any processor, and the definition of what every other path computes.
#include <cmath>

#include "elementwise.hpp"
#include "paths.hpp"

namespace headway {
namespace {

constexpr int64_t kTile = 4;  // tokens that share an unpacked group
constexpr int64_t kColumns = kPanel;

// One group of a panel, ready to multiply: weights less their offset, an input after the other, and
// scales as floats. 16-bit, since that is what every vector unit multiplies into 32 bits.
struct UnpackedGroup {
  int16_t q[kGroup][kColumns];
  float d[kColumns];
  float m[kColumns];
  int32_t half_scale[2][kColumns];
};

// Loops are over whole vectors of columns, for the compiler to vectorise.
void unpack_nibbles(const uint8_t* quants, int16_t offset, UnpackedGroup& group) {
  for (int k = 0; k < kGroup / 2; ++k) {
    const uint8_t* bytes = quants + k / 4 * 64 + k % 4;
    for (int c = 0; c < kColumns; ++c) {
      group.q[k][c] = static_cast<int16_t>((bytes[4 * c] & 15) - offset);
      group.q[k + 16][c] = static_cast<int16_t>((bytes[4 * c] >> 4) - offset);
    }
  }
}

void unpack_six_bits(const uint8_t* quants, UnpackedGroup& group) {
  unpack_nibbles(quants, 32, group);
  for (int k = 0; k < kGroup; ++k) {
    const uint8_t* bytes = quants + 256 + k / 16 * 64 + k % 4;
    const int shift = k % 16 / 4 * 2;
    for (int c = 0; c < kColumns; ++c) {
      group.q[k][c] = static_cast<int16_t>(group.q[k][c] + (bytes[4 * c] >> shift & 3) * 16);
    }
  }
}

void unpack_bytes(const uint8_t* quants, UnpackedGroup& group) {
  for (int k = 0; k < kGroup; ++k) {
    const uint8_t* bytes = quants + k / 4 * 64 + k % 4;
    for (int c = 0; c < kColumns; ++c) group.q[k][c] = static_cast<int16_t>(bytes[4 * c] - 128);
  }
}

template <WeightType kType>
void unpack(const uint8_t* panel, int64_t g, UnpackedGroup& group) {
  const uint8_t* quants = panel + group_offset(kType, g);
  const uint8_t* scales = quants + panel_layout(kType).quants;
  const uint8_t* supers = panel + super_offset(kType, g);
  if constexpr (kType == WeightType::q8_0) {
    unpack_bytes(quants, group);
  } else if constexpr (kType == WeightType::q6_k) {
    unpack_six_bits(quants, group);
  } else {
    unpack_nibbles(quants, kType == WeightType::q4_0 ? 8 : 0, group);
  }
  for (int c = 0; c < kColumns; ++c) {
    if constexpr (kType == WeightType::q4_k) {
      group.d[c] = load_half(supers + 2 * c) * static_cast<float>(scales[c]);
      group.m[c] = -(load_half(supers + 32 + 2 * c) * static_cast<float>(scales[16 + c]));
    } else if constexpr (kType == WeightType::q6_k) {
      group.d[c] = load_half(supers + 2 * c);
      group.half_scale[0][c] = static_cast<int8_t>(scales[2 * c]);
      group.half_scale[1][c] = static_cast<int8_t>(scales[2 * c + 1]);
    } else {
      group.d[c] = load_half(scales + 2 * c);
      if constexpr (kType == WeightType::q4_1) group.m[c] = load_half(scales + 32 + 2 * c);
    }
  }
}

// dot[h][c] = integer dot product of column c over half h of the group.
void dot_halves(const UnpackedGroup& group, const int8_t* a, int32_t (&dot)[2][kColumns]) {
  for (int half = 0; half < 2; ++half) {
    int32_t sums[kColumns] = {};
    for (int k = 16 * half; k < 16 * half + 16; ++k) {
      const int16_t factor = a[k];
      for (int c = 0; c < kColumns; ++c) sums[c] += group.q[k][c] * factor;
    }
    std::memcpy(dot[half], sums, sizeof sums);
  }
}

template <WeightType kType>
void accumulate(const UnpackedGroup& group, const QuantActs& acts, int64_t token, int64_t g,
                float* acc) {
  const int64_t at = acts.at(token, g);
  int32_t dot[2][kColumns];
  dot_halves(group, acts.q + at * kGroup, dot);
  for (int c = 0; c < kColumns; ++c) {
    int32_t total = dot[0][c] + dot[1][c];
    if constexpr (kType == WeightType::q6_k) {
      total = dot[0][c] * group.half_scale[0][c] + dot[1][c] * group.half_scale[1][c];
    }
    acc[c] = std::fma(group.d[c] * acts.scale[at], static_cast<float>(total), acc[c]);
    if constexpr (kType == WeightType::q4_1 || kType == WeightType::q4_k) {
      acc[c] = std::fma(group.m[c], acts.sum[at], acc[c]);
    }
  }
}

void store(const float* acc, int64_t columns, float* out, Store how) {
  for (int64_t c = 0; c < columns; ++c) out[c] = how == Store::add ? out[c] + acc[c] : acc[c];
}

template <WeightType kType>
void multiply(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
              const Rows& out, Store how) {
  const int64_t groups = weights.groups();
  UnpackedGroup group;
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    const int64_t columns = min_of(kColumns, weights.rows() - p * kPanel);
    for (int64_t t = tokens.begin; t < tokens.end; t += kTile) {
      const int64_t tile = min_of(kTile, tokens.end - t);
      float acc[kTile][kColumns] = {};
      for (int64_t g = 0; g < groups; ++g) {
        unpack<kType>(weights.panel(p), g, group);
        for (int64_t i = 0; i < tile; ++i) accumulate<kType>(group, acts, t + i, g, acc[i]);
      }
      for (int64_t i = 0; i < tile; ++i) {
        float* at = panel_of(out, p - panels.begin) + (t + i - tokens.begin) * out.ld;
        store(acc[i], columns, at, how);
      }
    }
  }
}

void multiply_any(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
                  const Rows& out, Store how) {
  switch (weights.type()) {
    case WeightType::q4_0:
      return multiply<WeightType::q4_0>(weights, acts, tokens, panels, out, how);
    case WeightType::q4_1:
      return multiply<WeightType::q4_1>(weights, acts, tokens, panels, out, how);
    case WeightType::q8_0:
      return multiply<WeightType::q8_0>(weights, acts, tokens, panels, out, how);
    case WeightType::q4_k:
      return multiply<WeightType::q4_k>(weights, acts, tokens, panels, out, how);
    case WeightType::q6_k:
      return multiply<WeightType::q6_k>(weights, acts, tokens, panels, out, how);
  }
}

void gemm(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
          float* out, int64_t ld, Store how) {
  const Rows rows{out + tokens.begin * ld + panels.begin * kPanel, ld, 0};
  multiply_any(weights, acts, tokens, panels, rows, how);
}

void quantize_group(const float* x, const QuantActs& out, int64_t token, int64_t g) {
  // Compared as integers, so that a NaN counts as the largest magnitude.
  uint32_t largest = 0;
  for (int k = 0; k < kGroup; ++k) {
    uint32_t bits;
    std::memcpy(&bits, x + k, 4);
    bits &= 0x7FFFFFFFU;
    largest = largest > bits ? largest : bits;
  }
  const GroupScale scale = group_scale(largest);
  int32_t halves[2] = {0, 0};
  int8_t* q = out.q + out.at(token, g) * kGroup;
  for (int k = 0; k < kGroup; ++k) {
    q[k] =
        scale.inverse == 0.0F ? int8_t{0} : static_cast<int8_t>(std::lrintf(x[k] * scale.inverse));
    halves[k / 16] += q[k];
  }
  store_group(scale.scale, halves[0], halves[1], out, token, g);
}

void quantize(const float* x, const QuantActs& out, int64_t token, Range groups) {
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    quantize_group(x + (g - groups.begin) * kGroup, out, token, g);
  }
}

float sum_of_squares(const float* x, int64_t cols) {
  float lanes[kGroup] = {};
  for (int64_t i = 0; i < cols; i += kGroup) {
    for (int64_t k = 0; k < kGroup; ++k) lanes[k] = std::fma(x[i + k], x[i + k], lanes[k]);
  }
  for (int64_t width = kGroup / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

void rmsnorm(const float* x, const float* weight, float eps, const QuantActs& out, int64_t token) {
  const float factor = rms_factor(sum_of_squares(x, out.cols), out.cols, eps);
  float normed[kGroup];
  for (int64_t g = 0; g < out.groups(); ++g) {
    const int64_t at = g * kGroup;
    for (int k = 0; k < kGroup; ++k) normed[k] = x[at + k] * factor * weight[at + k];
    quantize_group(normed, out, token, g);
  }
}

// e^x by 2^n * p(r), x = n ln 2 + r; see the constants in elementwise.hpp.
float exp_clamped(float x) {
  x = x > kExpHigh ? kExpHigh : x;  // false for NaN, which goes through
  x = x < kExpLow ? kExpLow : x;
  const float shifted = std::fma(x, kLog2E, kRoundToInteger);
  const float n = shifted - kRoundToInteger;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kExpTerms[0];
  for (int i = 1; i < kExpTermCount; ++i) p = std::fma(p, r, kExpTerms[i]);
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  int32_t value;
  std::memcpy(&value, &p, 4);
  value = static_cast<int32_t>(static_cast<uint32_t>(value) + (static_cast<uint32_t>(bits) << 23));
  std::memcpy(&p, &value, 4);
  return p;
}

void silu_mul(const float* gate, const float* up, const QuantActs& out, int64_t token,
              Range groups) {
  float values[kGroup];
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t at = (g - groups.begin) * kGroup;
    for (int k = 0; k < kGroup; ++k) {
      const float x = gate[at + k];
      values[k] = x / (1.0F + exp_clamped(-x)) * up[at + k];
    }
    quantize_group(values, out, token, g);
  }
}

void swiglu(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
            const QuantActs& out) {
  swiglu_by_blocks(multiply_any, silu_mul, gate_up, acts, tokens, groups, out);
}

}  // namespace

constinit const Kernels kPortableKernels = {Isa::portable, gemm,    swiglu,
                                            quantize,      rmsnorm, silu_mul};

}  // namespace headway
