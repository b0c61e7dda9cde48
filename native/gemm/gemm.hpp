// Quantised matrix products of the CPU engine:
//
//   y[tokens, rows] = x[tokens, cols] · W[rows, cols]^T
//
// Weights keep the exact values of their GGUF blocks; activations are int8 per token and group of
// 32 inputs. Every output element is one chain over the groups g = 0, 1, ... of its row, in this
// order and with these roundings, on every instruction path:
//
//   i    = integer dot product of the group, exact (offsets of the format included)
//   acc  = fma(d_g * s_g, float(i), acc)
//   acc  = fma(m_g, sum_g, acc)                       formats with a minimum only
//
// d_g, m_g: scale and minimum of the weights; s_g, sum_g: scale and scaled sum of the activations.
// So an element depends on its token and its weight row alone: neither the number of tokens, the
// tile, the split among threads nor the instruction path changes a bit of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace headway {

enum class WeightType : uint8_t { q4_0, q4_1, q8_0, q4_k, q6_k };

// In ascending order of speed; each later one needs what the earlier ones need.
enum class Isa : uint8_t { portable, avx2, avx512vnni, amx };

// Inputs that share one activation scale; also GGUF's smallest block.
inline constexpr int64_t kGroup = 32;
// Output features in one panel, the unit in which work is split.
inline constexpr int64_t kPanel = 16;

// Half-open interval of indices.
struct Range {
  int64_t begin;
  int64_t end;
};

// Bytes of one row of `cols` weights in GGUF's block format.
size_t gguf_row_bytes(WeightType type, int64_t cols);

// One row of GGUF blocks as floats, exact. cols: a multiple of 32 (256 for K-quants).
void dequantize_row(WeightType type, const uint8_t* row, int64_t cols, float* out);

// Everything that describes a packed buffer; plain data, fit to be written to a file beside it.
struct PackedHeader {
  uint32_t version;  // kPackedVersion of the code that packed it
  WeightType type;
  uint8_t interleaved;  // 1: panels alternate between two matrices of rows/2 rows (gate, up)
  uint8_t reserved[2];
  int64_t rows;
  int64_t cols;
};
inline constexpr uint32_t kPackedVersion = 1;

// Rows of one matrix in GGUF bytes.
struct RowSource {
  const uint8_t* bytes;
  int64_t rows;
};

// A weight matrix repacked for the kernels: panels of 16 output features, one layout for all
// instruction paths (drawn in layout.hpp), of GGUF's size but for padding (Q4_K: 3 % more).
// Immutable; copies share the buffer.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // A matrix over bytes that someone else owns (a mapped file); `data` aligned to 64 bytes and of
  // packed_bytes(header). `owner` keeps them alive. Throws std::invalid_argument on a bad header.
  PackedMatrix(const PackedHeader& header, const uint8_t* data, std::shared_ptr<const void> owner);

  const PackedHeader& header() const { return header_; }
  WeightType type() const { return header_.type; }
  int64_t rows() const { return header_.rows; }
  int64_t cols() const { return header_.cols; }
  int64_t groups() const { return header_.cols / kGroup; }
  int64_t panels() const { return (header_.rows + kPanel - 1) / kPanel; }
  size_t panel_bytes() const { return panel_bytes_; }
  size_t bytes() const { return panel_bytes_ * static_cast<size_t>(panels()); }
  const uint8_t* data() const { return data_; }
  const uint8_t* panel(int64_t index) const {
    return data_ + panel_bytes_ * static_cast<size_t>(index);
  }

 private:
  PackedHeader header_{};
  size_t panel_bytes_ = 0;
  const uint8_t* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

// Throws std::invalid_argument where rows, cols, type or version cannot be.
size_t packed_bytes(const PackedHeader& header);

// Room for the matrices of a model side by side, in large blocks that live as long as any of them.
// The system may back those with huge pages, which every pass over the weights gains from (8 % at
// one token on two cores). Not for several threads at once.
class WeightArena {
 public:
  // Aligned to 64 bytes, uninitialised. Throws std::bad_alloc.
  std::shared_ptr<uint8_t> take(size_t bytes);

 private:
  std::shared_ptr<uint8_t> block_;
  size_t size_ = 0;
  size_t used_ = 0;
};

// Sources stacked one under the other (q, k and v as one matrix), in the arena if there is one.
// Throws std::invalid_argument.
PackedMatrix pack(WeightType type, int64_t cols, const std::vector<RowSource>& sources,
                  WeightArena* arena = nullptr);
PackedMatrix pack(WeightType type, int64_t rows, int64_t cols, const uint8_t* bytes,
                  WeightArena* arena = nullptr);
// Panels of `gate` and `up` in turn, for Kernels::swiglu; `rows` of each, a multiple of 32.
PackedMatrix pack_interleaved(WeightType type, int64_t rows, int64_t cols, const uint8_t* gate,
                              const uint8_t* up, WeightArena* arena = nullptr);
// One row of a packed matrix (counted as its sources were stacked; in an interleaved one all rows
// of gate come before those of up) as floats: the same bits as dequantize_row of its GGUF bytes.
void dequantize_row(const PackedMatrix& matrix, int64_t row, float* out);

// Quantised activations; a view of buffers that someone else owns. Group-major, so that the tokens
// of a tile lie side by side: with G = cols / 32 and S = stride >= tokens,
//   q        [G, S, 32]  int8 in -127..127
//   scale    [G, S]      largest magnitude of the group / 127; NaN if the group is not finite
//   sum      [G, S]      scale * (sum of q over the group), one rounding
//   negative [G, S]      -(sum of q over the group)
//   halves   [G, S, 2]   sums of q over the two halves of the group
struct QuantActs {
  int64_t tokens = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  int8_t* q = nullptr;
  float* scale = nullptr;
  float* sum = nullptr;
  int32_t* negative = nullptr;
  int16_t* halves = nullptr;

  int64_t groups() const { return cols / kGroup; }
  // Index of a group in scale, sum and negative; times 32 in q, times 2 in halves.
  int64_t at(int64_t token, int64_t group) const { return group * stride + token; }
};

// Owns room for quantised activations.
class QuantBuffer {
 public:
  QuantBuffer(int64_t max_tokens, int64_t max_cols);
  // A view for this shape, each extent at most its maximum; a new view invalidates what older ones
  // hold. Throws std::invalid_argument.
  QuantActs view(int64_t tokens, int64_t cols) const;

 private:
  int64_t max_tokens_;
  int64_t max_cols_;
  std::shared_ptr<uint8_t> bytes_;
};

enum class Store : uint8_t { assign, add };  // add: out = out + y, for residual streams

// The functions of one instruction path. Ranges are within bounds (the caller's promise); distinct
// ranges of panels, groups or tokens may run on distinct threads at once.
struct Kernels {
  Isa isa;

  // out[t * ld + r] = y[t, r] for the tokens of the range and the rows r of the panels; a last
  // panel that is not full writes only its rows. Row r of panel p is 16 p + (0..15).
  void (*gemm)(const PackedMatrix& weights, const QuantActs& acts, Range tokens, Range panels,
               float* out, int64_t ld, Store store);

  // out = quantised silu(gate) * up for the tokens of the range and groups of 32 output features;
  // `gate_up` from pack_interleaved, out.cols == gate_up.rows() / 2.
  void (*swiglu)(const PackedMatrix& gate_up, const QuantActs& acts, Range tokens, Range groups,
                 const QuantActs& out);

  // Quantises 32 * (groups of the range) consecutive floats into `groups` of one token of `out`.
  void (*quantize)(const float* x, const QuantActs& out, int64_t token, Range groups);

  // out[token] = quantised x * weight / sqrt(mean(x^2) + eps) over out.cols values.
  void (*rmsnorm)(const float* x, const float* weight, float eps, const QuantActs& out,
                  int64_t token);

  // out[token, groups] = quantised silu(gate) * up, for gate and up that were computed apart.
  void (*silu_mul)(const float* gate, const float* up, const QuantActs& out, int64_t token,
                   Range groups);
};

// Whether this processor and its operating system can run the path.
bool supports(Isa isa);
// The fastest path that is supported.
Isa best_isa();
// Throws std::invalid_argument if the path is not supported here.
const Kernels& kernels(Isa isa);

}  // namespace headway
