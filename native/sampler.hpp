// From a row of logits to a token: penalties, bias, grammar, temperature, truncation, draw.
//
// Everything is a pure function of the row, the request's settings and its tokens so far.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"

namespace headway {

// headway.core.plan.SamplingSpec.
struct SamplingSpec {
  uint64_t seed = 0;
  uint64_t choice = 0;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition = 1;
  float presence = 0;
  float frequency = 0;
  std::vector<std::pair<int32_t, float>> bias;
  int logprobs = -1;

  bool penalised() const { return repetition != 1 || presence != 0 || frequency != 0; }
};

// A request's sampling state: its settings and, where penalties need them, its tokens.
class Sequence {
 public:
  Sequence(SamplingSpec spec, std::vector<int32_t> prompt);

  const SamplingSpec& spec() const { return spec_; }

  // Tokens of a chunk that was computed; those behind the prompt are output. Told twice of a
  // position, the second time changes nothing.
  void computed(int start, const std::vector<int32_t>& tokens);

  // Penalties on a row of logits for the token after `position`: tokens up to it count.
  void penalise(int position, float* logits);

 private:
  void count_up_to(int outputs);

  SamplingSpec spec_;
  int prompt_size_;
  std::unordered_map<int32_t, int> counts_;  // prompt and output tokens: occurrences in the output
  std::vector<int32_t> output_;              // by position after the prompt; -1 unknown
  int counted_ = 0;                          // outputs in counts_
};

struct TokenLogprob {
  int32_t token;
  float logprob;
};

struct Sample {
  int32_t token = -1;
  float logprob = 0;
  std::vector<TokenLogprob> top;  // most likely first
  std::string error;              // not empty: the request failed
};

// What one thread needs to sample, reused over rows.
class Sampler {
 public:
  Sampler(const VectorKernels& kernels, int vocab);

  // Floats in a row of logits: vocab, padded.
  static size_t row_size(int vocab);

  // Samples the token after `position`. `logits` [row_size] is consumed; `mask` may be null.
  Sample sample(Sequence& sequence, int position, const uint8_t* mask, float* logits);

 private:
  struct Candidate {
    float weight;
    int32_t token;
  };

  static bool likelier(const Candidate& a, const Candidate& b);
  float peak() const;
  int32_t first_at(const float* x, float value) const;
  void top_logprobs(const float* x, int k, float log_total, std::vector<TokenLogprob>& out);
  std::string restrict(const SamplingSpec& spec, const uint8_t* mask, float* x);
  double total_weight() const;
  double collect(const float* weights, float limit);
  void select_top(const float* x, int k);
  void select_nucleus(const float* weights, float p);
  void select_wide_nucleus(const float* weights, double wanted);
  size_t edge_bin(const float* weights, double wanted);
  void keep_mass(double wanted);
  int32_t draw(const SamplingSpec& spec, int position, float* x);
  int32_t draw_from_all(const float* weights, double uniform) const;
  int32_t draw_from_candidates(double uniform) const;

  const VectorKernels& kernels_;
  int vocab_;
  int size_;                   // of a row
  std::vector<float> groups_;  // maxima or sums of each 64 of the row
  std::vector<float> order_;
  std::vector<float> raw_;
  std::vector<float> bins_;
  std::vector<int32_t> ids_;
  std::vector<Candidate> candidates_;
};

// A uniform number in [0, 1) for (seed, choice, position): Philox 4x32-10 (Salmon et al. 2011).
double uniform(uint64_t seed, uint64_t choice, uint64_t position);

}  // namespace headway
