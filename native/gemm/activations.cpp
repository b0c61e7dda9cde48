#include <stdexcept>

#include "aligned.hpp"
#include "gemm.hpp"

namespace headway {
namespace {

constexpr size_t kGroupBytes = kGroup + 2 * sizeof(float) + sizeof(int32_t) + 2 * sizeof(int16_t);

// Tokens between two groups: an odd multiple of 4, so that a tile's groups (128 bytes times an odd
// number apart) spread over all sets of the L1 cache instead of falling on the same few.
int64_t token_stride(int64_t tokens) { return ((tokens + 3) / 4 | 1) * 4; }

}  // namespace

QuantBuffer::QuantBuffer(int64_t max_tokens, int64_t max_cols)
    : max_tokens_(max_tokens), max_cols_(max_cols) {
  if (max_tokens <= 0 || max_cols <= 0 || max_cols % kGroup != 0) {
    throw std::invalid_argument("activations need tokens and whole groups of 32 columns");
  }
  const int64_t groups = token_stride(max_tokens) * (max_cols / kGroup);
  bytes_ = allocate_aligned(static_cast<size_t>(groups) * kGroupBytes);
}

QuantActs QuantBuffer::view(int64_t tokens, int64_t cols) const {
  if (tokens <= 0 || tokens > max_tokens_ || cols <= 0 || cols > max_cols_ || cols % kGroup != 0) {
    throw std::invalid_argument("activations do not fit their buffer");
  }
  const int64_t stride = token_stride(tokens);
  const int64_t groups = stride * (cols / kGroup);
  // Largest elements first, which keeps every run aligned.
  auto* q = reinterpret_cast<int8_t*>(bytes_.get());
  auto* scale = reinterpret_cast<float*>(q + groups * kGroup);
  auto* sum = scale + groups;
  auto* negative = reinterpret_cast<int32_t*>(sum + groups);
  auto* halves = reinterpret_cast<int16_t*>(negative + groups);
  return {tokens, cols, stride, q, scale, sum, negative, halves};
}

}  // namespace headway
