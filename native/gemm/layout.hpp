// Layout of a packed matrix, and the small helpers that every instruction path shares.
//
// A panel holds 16 output features ("columns" here) over all inputs, group after group, as one
// stream:
//
//   Q4_0, Q4_1, Q8_0   [ quants 0 | scales 0 | quants 1 | scales 1 | ... ]
//   Q4_K, Q6_K         [ super scales | 8 times (quants | scales) | super scales | ... ]
//
// padded to 64 bytes. A *step* is 4 consecutive inputs; step s of a group is one 64-byte vector of
// bytes [column 0..15][input 4s..4s+3], the operand of a four-way dot product (its 32-byte halves
// serve AVX2).
//
//   quants  4 bit (Q4_0, Q4_1, Q4_K)  4 vectors: vector v = step v in the low nibbles, step v + 4
//                                     in the high ones
//           8 bit (Q8_0)              8 vectors: vector v = step v, weight + 128
//           6 bit (Q6_K)              4 vectors of low nibbles as above, then 2 of high bits:
//                                     vector h, bits 2j..2j+1 = step 4h + j
//   scales  Q4_0, Q8_0  d[16] fp16          super scales  none
//           Q4_1        d[16], m[16] fp16                 none
//           Q4_K        sc[16], min[16] u8                d[16], dmin[16] fp16
//           Q6_K        sc[16][half 0, half 1] i8         d[16] fp16
//
// The translation units of this folder are compiled with different instruction sets. Functions in
// headers are therefore static: a shared inline function could be emitted once, with the widest
// set, and then crash the others.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "gemm.hpp"

namespace headway {

// Bytes of the parts of a panel.
struct PanelLayout {
  size_t quants;  // a group
  size_t scales;  // a group
  size_t supers;  // 8 groups; 0 if the format has none
};

static constexpr PanelLayout panel_layout(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {256, 32, 0};
    case WeightType::q4_1:
      return {256, 64, 0};
    case WeightType::q8_0:
      return {512, 32, 0};
    case WeightType::q4_k:
      return {256, 32, 64};
    case WeightType::q6_k:
      return {384, 32, 32};
  }
  return {0, 0, 0};
}

// f(std::integral_constant<WeightType, type>)
template <class F>
static inline void with_type(WeightType type, F&& f) {
  switch (type) {
    case WeightType::q4_0:
      return f(std::integral_constant<WeightType, WeightType::q4_0>{});
    case WeightType::q4_1:
      return f(std::integral_constant<WeightType, WeightType::q4_1>{});
    case WeightType::q8_0:
      return f(std::integral_constant<WeightType, WeightType::q8_0>{});
    case WeightType::q4_k:
      return f(std::integral_constant<WeightType, WeightType::q4_k>{});
    case WeightType::q6_k:
      return f(std::integral_constant<WeightType, WeightType::q6_k>{});
  }
}

static constexpr bool is_k_quant(WeightType type) {
  return type == WeightType::q4_k || type == WeightType::q6_k;
}

static inline size_t panel_stride(WeightType type, int64_t cols) {
  const PanelLayout layout = panel_layout(type);
  const size_t groups = static_cast<size_t>(cols / kGroup);
  const size_t bytes = groups * (layout.quants + layout.scales) + groups / 8 * layout.supers;
  return (bytes + 63) / 64 * 64;
}

// Offset of a group's quants in its panel.
static inline size_t group_offset(WeightType type, int64_t group) {
  const PanelLayout layout = panel_layout(type);
  const size_t index = static_cast<size_t>(group);
  return index * (layout.quants + layout.scales) + (index / 8 + 1) * layout.supers;
}

// Offset of the super scales that a group falls under.
static inline size_t super_offset(WeightType type, int64_t group) {
  return group_offset(type, group / 8 * 8) - panel_layout(type).supers;
}

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t rest = half & 0x7FFFU;
  uint32_t bits;
  if (rest >= 0x7C00U) {  // infinity, NaN
    bits = sign | 0x7F800000U | ((rest & 0x3FFU) << 13);
  } else if (rest >= 0x400U) {
    bits = sign | ((rest + (112U << 10)) << 13);
  } else {  // zero, subnormal: exact as a small integer times 2^-24
    const float magnitude = static_cast<float>(rest) * 0x1p-24F;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline float load_half(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  return half_to_float(half);
}

// Room for so many numbers, this thread's until it asks again. Compiled once, for any processor.
int16_t* widening_buffer(size_t count);

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace headway
