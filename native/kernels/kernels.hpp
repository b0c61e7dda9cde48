// Vector kernels of the model step, one table per instruction set. Matrix products are in gemm/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headway {

constexpr int kBlockTokens = 16;   // tokens of a KV block
constexpr int kSplitTokens = 256;  // attention is reduced apart for each of these, by position
constexpr int kLogitGroup = 64;    // logit rows are padded to a multiple of this with -inf

// Query rows of some neighbouring KV heads, and the cache they attend to.
//
//   block of the pool, fp16:  [layer][kv head] { K [head_dim][16] | V [16][head_dim] }
//
// Row r stands at position `position + r` and sees positions 0 ... position + r. Its query heads
// lie at q + r * q_stride + g * head_dim, g < heads * group, already multiplied by
// 1 / sqrt(head_dim).
struct AttentionTask {
  const uint16_t* pool;   // the layer's and head's K of block 0
  size_t block_stride;    // halves from a block to the next
  const int32_t* blocks;  // block table
  int head_dim;           // a multiple of 32
  int heads;  // KV heads; more than one reads longer stretches of memory
  int rows;
  int group;     // query heads of a KV head
  int position;  // of row 0
  const float* q;
  size_t q_stride;
};

// What attention over one split of the context leaves for each query (row-major heads x rows x
// group): unnormalised values [head_dim], the maximum score and the sum of exponentials.
struct Partial {
  float* values;
  float* peak;
  float* sum;
};

struct VectorKernels {
  // Attention of all rows over positions [split * 256, (split + 1) * 256). Rows that stand
  // before the split are left out. `scratch` holds attention_scratch() floats.
  void (*attend)(const AttentionTask&, int split, Partial out, float* scratch);
  // total := total joined with part, for queries [from, queries). The order of calls is the
  // order of the splits, which fixes the result.
  void (*merge)(Partial total, Partial part, int from, int queries, int head_dim);
  // x[i] := values / sum, for one query.
  void (*normalise)(const float* values, float sum, int head_dim, float* x);

  // Half-split rotary embedding of one head, times `scale`.
  void (*rope)(float* x, const float* cos, const float* sin, int half, float scale);
  // RMS norm of one head, in place.
  void (*head_norm)(float* x, const float* weight, int n, float eps);
  void (*add)(float* x, const float* y, int n);
  // One head of one token into its block: `slot` is the token's place in it.
  void (*store_k)(const float* x, uint16_t* k, int head_dim, int slot);
  void (*store_v)(const float* x, uint16_t* v, int head_dim, int slot);

  // Logit rows, n a multiple of 64. Maxima of each 64; true if any value is NaN.
  bool (*group_max)(const float* x, int n, float* maxima);
  // Sum of exp(x - peak), in one fixed order.
  float (*sum_exp)(const float* x, int n, float peak);
  // x := exp((x - peak) * inverse_temperature); sums of each 64.
  void (*exp_scaled)(float* x, int n, float peak, float inverse_temperature, float* sums);
  // Ids of the values >= limit in ascending order; returns how many. `ids` has room for n.
  int (*gather)(const float* x, int n, float limit, int32_t* ids);
};

// Floats of scratch `attend` needs for so many queries: scores of a tile for the queries computed
// together, and one vector of partial sums for each query.
constexpr size_t attention_scratch(int queries) {
  return 6 * 64 + 16 * static_cast<size_t>(queries);
}

const VectorKernels& kernels_portable();
#ifdef HEADWAY_X86
const VectorKernels& kernels_avx2();
const VectorKernels& kernels_avx512();
#endif

}  // namespace headway
