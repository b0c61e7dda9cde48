// GGUF block formats, read one group of 32 weights at a time.
#pragma once

#include "layout.hpp"

namespace headway {

// One group as it is stored: quants before any offset, fp16 bits, integer sub-scales.
struct WeightGroup {
  uint8_t q[kGroup];  // Q8_0: weight + 128
  uint16_t d;         // fp16 scale (of the super block for K-quants)
  uint16_t m;         // fp16 minimum (Q4_1), scale of minima (Q4_K)
  uint8_t scale[2];   // Q4_K: scale, min; Q6_K: int8 bits of the two halves' scales
};

// Group `index` of a row of GGUF blocks.
WeightGroup read_group(WeightType type, const uint8_t* row, int64_t index);

// The group's 32 values.
void dequantize_group(WeightType type, const WeightGroup& group, float* out);

}  // namespace headway
