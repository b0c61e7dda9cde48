#include "blocks.hpp"

#include <stdexcept>

namespace headway {
namespace {

constexpr int64_t kSuper = 256;

struct BlockShape {
  int64_t weights;
  size_t bytes;
};

BlockShape block_shape(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {kGroup, 18};
    case WeightType::q4_1:
      return {kGroup, 20};
    case WeightType::q8_0:
      return {kGroup, 34};
    case WeightType::q4_k:
      return {kSuper, 144};
    case WeightType::q6_k:
      return {kSuper, 210};
  }
  throw std::invalid_argument("unknown weight type");
}

uint16_t load_u16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, 2);
  return value;
}

// 16 bytes: inputs 0-15 in the low nibbles, 16-31 in the high ones.
void split_nibbles(const uint8_t* bytes, uint8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = bytes[j] & 15;
    q[j + 16] = bytes[j] >> 4;
  }
}

// The 12 bytes of 6-bit scales and minima: the first four of each whole, the high bits of those
// bytes completing the last four.
void unpack_scale_min(const uint8_t* s, int j, uint8_t* out) {
  if (j < 4) {
    out[0] = s[j] & 63;
    out[1] = s[j + 4] & 63;
  } else {
    out[0] = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6 << 4));
    out[1] = static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6 << 4));
  }
}

// {d, dmin, scales[12], nibbles[128]}: each 32 bytes carry two groups, low nibbles first.
WeightGroup read_q4_k(const uint8_t* block, int j) {
  WeightGroup group{};
  group.d = load_u16(block);
  group.m = load_u16(block + 2);
  unpack_scale_min(block + 4, j, group.scale);
  const uint8_t* nibbles = block + 16 + j / 2 * 32;
  const int shift = j % 2 * 4;
  for (int k = 0; k < kGroup; ++k) group.q[k] = nibbles[k] >> shift & 15;
  return group;
}

// {low[128], high[64], scales[16], d}: 128 weights at a time share 64 low and 32 high bytes.
WeightGroup read_q6_k(const uint8_t* block, int j) {
  WeightGroup group{};
  const uint8_t* low = block + j / 4 * 64 + j % 2 * 32;
  const uint8_t* high = block + 128 + j / 4 * 32;
  const int quarter = j % 4;
  for (int k = 0; k < kGroup; ++k) {
    const int nibble = quarter < 2 ? low[k] & 15 : low[k] >> 4;
    group.q[k] = static_cast<uint8_t>(nibble | (high[k] >> 2 * quarter & 3) << 4);
  }
  group.scale[0] = block[192 + 2 * j];
  group.scale[1] = block[192 + 2 * j + 1];
  group.d = load_u16(block + 208);
  return group;
}

}  // namespace

size_t gguf_row_bytes(WeightType type, int64_t cols) {
  const BlockShape shape = block_shape(type);
  if (cols <= 0 || cols % shape.weights != 0) {
    throw std::invalid_argument("columns must be a positive multiple of the format's block");
  }
  return static_cast<size_t>(cols / shape.weights) * shape.bytes;
}

WeightGroup read_group(WeightType type, const uint8_t* row, int64_t index) {
  const BlockShape shape = block_shape(type);
  const int64_t groups = shape.weights / kGroup;
  const uint8_t* block = row + static_cast<size_t>(index / groups) * shape.bytes;
  const int within = static_cast<int>(index % groups);
  WeightGroup group{};
  group.d = load_u16(block);
  switch (type) {
    case WeightType::q4_0:
      split_nibbles(block + 2, group.q);
      return group;
    case WeightType::q4_1:
      group.m = load_u16(block + 2);
      split_nibbles(block + 4, group.q);
      return group;
    case WeightType::q8_0:
      for (int k = 0; k < kGroup; ++k) group.q[k] = static_cast<uint8_t>(block[2 + k] ^ 0x80);
      return group;
    case WeightType::q4_k:
      return read_q4_k(block, within);
    case WeightType::q6_k:
      return read_q6_k(block, within);
  }
  return group;
}

void dequantize_group(WeightType type, const WeightGroup& group, float* out) {
  const float d = half_to_float(group.d);
  const float m = half_to_float(group.m);
  for (int k = 0; k < kGroup; ++k) {
    const int q = group.q[k];
    switch (type) {
      case WeightType::q4_0:
        out[k] = d * static_cast<float>(q - 8);
        break;
      case WeightType::q4_1:
        out[k] = d * static_cast<float>(q) + m;
        break;
      case WeightType::q8_0:
        out[k] = d * static_cast<float>(q - 128);
        break;
      case WeightType::q4_k:
        out[k] = d * static_cast<float>(group.scale[0]) * static_cast<float>(q) -
                 m * static_cast<float>(group.scale[1]);
        break;
      case WeightType::q6_k:
        out[k] = d * static_cast<float>(static_cast<int8_t>(group.scale[k / 16])) *
                 static_cast<float>(q - 32);
        break;
    }
  }
}

void dequantize_row(WeightType type, const uint8_t* row, int64_t cols, float* out) {
  gguf_row_bytes(type, cols);  // checks the shape
  for (int64_t g = 0; g < cols / kGroup; ++g) {
    dequantize_group(type, read_group(type, row, g), out + g * kGroup);
  }
}

}  // namespace headway
