#include <stdexcept>
#include <utility>

#include "aligned.hpp"
#include "blocks.hpp"

namespace headway {
namespace {

void put_low_nibbles(const uint8_t* q, int64_t column, uint8_t* quants) {
  for (int k = 0; k < kGroup / 2; ++k) {
    quants[k / 4 * 64 + column * 4 + k % 4] =
        static_cast<uint8_t>((q[k] & 15) | (q[k + 16] & 15) << 4);
  }
}

void put_high_bits(const uint8_t* q, int64_t column, uint8_t* quants) {
  for (int k = 0; k < kGroup; ++k) {
    uint8_t& byte = quants[k / 16 * 64 + column * 4 + k % 4];
    byte = static_cast<uint8_t>(byte | (q[k] >> 4) << (k % 16 / 4 * 2));
  }
}

void put_bytes(const uint8_t* q, int64_t column, uint8_t* quants) {
  for (int k = 0; k < kGroup; ++k) quants[k / 4 * 64 + column * 4 + k % 4] = q[k];
}

void put_half(uint16_t half, int64_t column, uint8_t* run) {
  std::memcpy(run + 2 * column, &half, 2);
}

// Writes group g of one row into its column of a panel that was zeroed.
void put_group(WeightType type, const WeightGroup& group, int64_t g, int64_t column,
               uint8_t* panel) {
  uint8_t* quants = panel + group_offset(type, g);
  uint8_t* scales = quants + panel_layout(type).quants;
  uint8_t* supers = panel + super_offset(type, g);
  if (type == WeightType::q8_0) {
    put_bytes(group.q, column, quants);
  } else {
    put_low_nibbles(group.q, column, quants);
  }
  switch (type) {
    case WeightType::q4_0:
    case WeightType::q8_0:
      put_half(group.d, column, scales);
      break;
    case WeightType::q4_1:
      put_half(group.d, column, scales);
      put_half(group.m, column, scales + 32);
      break;
    case WeightType::q4_k:
      scales[column] = group.scale[0];
      scales[16 + column] = group.scale[1];
      put_half(group.d, column, supers);
      put_half(group.m, column, supers + 32);
      break;
    case WeightType::q6_k:
      put_high_bits(group.q, column, quants + 256);
      std::memcpy(scales + 2 * column, group.scale, 2);
      put_half(group.d, column, supers);
      break;
  }
}

uint16_t get_half(const uint8_t* run, int64_t column) {
  uint16_t half;
  std::memcpy(&half, run + 2 * column, 2);
  return half;
}

// The inverse of put_group.
WeightGroup get_group(WeightType type, const uint8_t* panel, int64_t g, int64_t column) {
  const uint8_t* quants = panel + group_offset(type, g);
  const uint8_t* scales = quants + panel_layout(type).quants;
  const uint8_t* supers = panel + super_offset(type, g);
  WeightGroup group{};
  for (int k = 0; k < kGroup; ++k) {
    const size_t within = static_cast<size_t>(column * 4 + k % 4);
    if (type == WeightType::q8_0) {
      group.q[k] = quants[static_cast<size_t>(k / 4 * 64) + within];
      continue;
    }
    const int nibble = quants[static_cast<size_t>(k % 16 / 4 * 64) + within] >> k / 16 * 4 & 15;
    int high = 0;
    if (type == WeightType::q6_k) {
      high = quants[256 + static_cast<size_t>(k / 16 * 64) + within] >> (k % 16 / 4 * 2) & 3;
    }
    group.q[k] = static_cast<uint8_t>(nibble | high << 4);
  }
  const uint8_t* halves = is_k_quant(type) ? supers : scales;
  group.d = get_half(halves, column);
  if (type == WeightType::q4_1 || type == WeightType::q4_k) group.m = get_half(halves + 32, column);
  if (type == WeightType::q4_k) {
    group.scale[0] = scales[column];
    group.scale[1] = scales[16 + column];
  } else if (type == WeightType::q6_k) {
    std::memcpy(group.scale, scales + 2 * column, 2);
  }
  return group;
}

void put_row(WeightType type, int64_t cols, const uint8_t* row, int64_t column, uint8_t* panel) {
  for (int64_t g = 0; g < cols / kGroup; ++g) {
    put_group(type, read_group(type, row, g), g, column, panel);
  }
}

// Packed position of a source row.
int64_t position(const PackedHeader& header, int64_t row) {
  if (header.interleaved == 0) return row;
  const int64_t half = header.rows / 2;
  const int64_t within = row % half;
  return (2 * (within / kPanel) + row / half) * kPanel + within % kPanel;
}

PackedMatrix pack_sources(const PackedHeader& header, const std::vector<RowSource>& sources,
                          WeightArena* arena) {
  const size_t bytes = packed_bytes(header);
  const std::shared_ptr<uint8_t> buffer =
      arena == nullptr ? allocate_aligned(bytes) : arena->take(bytes);
  std::memset(buffer.get(), 0, bytes);
  const size_t row_bytes = gguf_row_bytes(header.type, header.cols);
  const size_t stride = panel_stride(header.type, header.cols);
  int64_t row = 0;
  for (const RowSource& source : sources) {
    for (int64_t i = 0; i < source.rows; ++i, ++row) {
      const int64_t at = position(header, row);
      put_row(header.type, header.cols, source.bytes + static_cast<size_t>(i) * row_bytes,
              at % kPanel, buffer.get() + static_cast<size_t>(at / kPanel) * stride);
    }
  }
  return PackedMatrix(header, buffer.get(), buffer);
}

}  // namespace

size_t packed_bytes(const PackedHeader& header) {
  if (header.version != kPackedVersion) throw std::invalid_argument("packed by another version");
  if (header.type > WeightType::q6_k) throw std::invalid_argument("unknown weight type");
  gguf_row_bytes(header.type, header.cols);  // checks the columns
  if (header.rows <= 0 || header.rows > INT64_C(1) << 32 || header.cols > INT64_C(1) << 24) {
    throw std::invalid_argument("matrix shape out of range");
  }
  if (header.interleaved > 1 || (header.interleaved == 1 && header.rows % (2 * kGroup) != 0)) {
    throw std::invalid_argument("interleaved matrices need a multiple of 32 rows each");
  }
  const size_t panels = static_cast<size_t>((header.rows + kPanel - 1) / kPanel);
  return panels * panel_stride(header.type, header.cols);
}

PackedMatrix::PackedMatrix(const PackedHeader& header, const uint8_t* data,
                           std::shared_ptr<const void> owner)
    : header_(header), data_(data), owner_(std::move(owner)) {
  packed_bytes(header);  // checks the header
  panel_bytes_ = panel_stride(header.type, header.cols);
  if (reinterpret_cast<uintptr_t>(data) % kAlign != 0) {
    throw std::invalid_argument("packed weights must be aligned to 64 bytes");
  }
}

PackedMatrix pack(WeightType type, int64_t cols, const std::vector<RowSource>& sources,
                  WeightArena* arena) {
  int64_t rows = 0;
  for (const RowSource& source : sources) rows += source.rows;
  return pack_sources({kPackedVersion, type, 0, {0, 0}, rows, cols}, sources, arena);
}

PackedMatrix pack(WeightType type, int64_t rows, int64_t cols, const uint8_t* bytes,
                  WeightArena* arena) {
  return pack(type, cols, {{bytes, rows}}, arena);
}

PackedMatrix pack_interleaved(WeightType type, int64_t rows, int64_t cols, const uint8_t* gate,
                              const uint8_t* up, WeightArena* arena) {
  return pack_sources({kPackedVersion, type, 1, {0, 0}, 2 * rows, cols}, {{gate, rows}, {up, rows}},
                      arena);
}

void dequantize_row(const PackedMatrix& matrix, int64_t row, float* out) {
  const int64_t at = position(matrix.header(), row);
  const uint8_t* panel = matrix.panel(at / kPanel);
  for (int64_t g = 0; g < matrix.groups(); ++g) {
    dequantize_group(matrix.type(), get_group(matrix.type(), panel, g, at % kPanel),
                     out + g * kGroup);
  }
}

}  // namespace headway
