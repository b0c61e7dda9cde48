#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace headway {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr const char* kNotNumbers = "the model's logits are not numbers";
constexpr int kBinShift = 20;          // leaves exponent and three bits of a weight
constexpr float kLikely = 1e-3f;       // of the likeliest token's weight: few are, as a rule
constexpr float kGreedyBelow = 1e-5f;  // temperatures whose inverse would overflow

}  // namespace

bool Sampler::likelier(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                   static_cast<uint32_t>(choice), static_cast<uint32_t>(choice >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{c[0]} << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

Sequence::Sequence(SamplingSpec spec, std::vector<int32_t> prompt)
    : spec_(std::move(spec)), prompt_size_(static_cast<int>(prompt.size())) {
  if (!spec_.penalised()) return;
  for (const int32_t token : prompt) counts_.emplace(token, 0);
}

void Sequence::computed(int start, const std::vector<int32_t>& tokens) {
  if (!spec_.penalised()) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int at = start + static_cast<int>(i) - prompt_size_;
    if (at < 0) continue;
    if (static_cast<size_t>(at) >= output_.size()) output_.resize(static_cast<size_t>(at) + 1, -1);
    output_[static_cast<size_t>(at)] = tokens[i];
  }
}

void Sequence::count_up_to(int outputs) {
  // A token that was counted and is ahead of the position now: cannot be, unless a step is done
  // again from an earlier one; start over then.
  if (outputs < counted_) {
    for (int i = 0; i < counted_; ++i) counts_[output_[static_cast<size_t>(i)]] = 0;
    counted_ = 0;
  }
  for (; counted_ < outputs; ++counted_) {
    const int32_t token = output_[static_cast<size_t>(counted_)];
    if (token >= 0) ++counts_[token];
  }
}

void Sequence::penalise(int position, float* logits) {
  if (!spec_.penalised()) return;
  const int known = static_cast<int>(output_.size());
  count_up_to(std::clamp(position + 1 - prompt_size_, 0, known));
  for (const auto& [token, count] : counts_) {
    float& x = logits[token];
    x = x > 0 ? x / spec_.repetition : x * spec_.repetition;
    if (count > 0) x -= spec_.presence + spec_.frequency * static_cast<float>(count);
  }
}

size_t Sampler::row_size(int vocab) {
  return (static_cast<size_t>(vocab) + kLogitGroup - 1) / kLogitGroup * kLogitGroup;
}

Sampler::Sampler(const VectorKernels& kernels, int vocab)
    : kernels_(kernels),
      vocab_(vocab),
      size_(static_cast<int>(row_size(vocab))),
      groups_(static_cast<size_t>(size_) / kLogitGroup),
      ids_(static_cast<size_t>(size_)) {}

float Sampler::peak() const { return *std::max_element(groups_.begin(), groups_.end()); }

int32_t Sampler::first_at(const float* x, float value) const {
  size_t group = 0;
  while (groups_[group] < value) ++group;
  int32_t i = static_cast<int32_t>(group) * kLogitGroup;
  while (x[i] < value) ++i;
  return i;
}

Sample Sampler::sample(Sequence& sequence, int position, const uint8_t* mask, float* logits) {
  const SamplingSpec& spec = sequence.spec();
  std::fill(logits + vocab_, logits + size_, kNever);
  Sample result;
  if (kernels_.group_max(logits, size_, groups_.data()) || std::isinf(peak())) {
    result.error = kNotNumbers;
    return result;
  }
  float log_total = 0;
  if (spec.logprobs >= 0) {  // of the raw row: everything below changes it
    log_total = peak() + std::log(kernels_.sum_exp(logits, size_, peak()));
    top_logprobs(logits, spec.logprobs, log_total, result.top);
    raw_.assign(logits, logits + vocab_);
  }
  sequence.penalise(position, logits);
  result.error = restrict(spec, mask, logits);
  if (!result.error.empty()) return result;
  result.token = draw(spec, position, logits);
  if (spec.logprobs >= 0) result.logprob = raw_[static_cast<size_t>(result.token)] - log_total;
  return result;
}

void Sampler::top_logprobs(const float* x, int k, float log_total, std::vector<TokenLogprob>& out) {
  if (k == 0) return;
  select_top(x, k);
  for (const Candidate& c : candidates_) out.push_back({c.token, c.weight - log_total});
}

// Bias and grammar; leaves the group maxima of what remains. Says what is wrong, if anything is.
std::string Sampler::restrict(const SamplingSpec& spec, const uint8_t* mask, float* x) {
  for (const auto& [token, value] : spec.bias) x[token] += value;
  if (mask != nullptr)
    for (int i = 0; i < vocab_; ++i)
      if ((mask[i / 8] >> (i % 8) & 1) == 0) x[i] = kNever;
  const bool touched = mask != nullptr || !spec.bias.empty() || spec.penalised();
  if (touched && kernels_.group_max(x, size_, groups_.data())) return kNotNumbers;
  if (peak() == kNever) return "no token is allowed here";
  return std::isfinite(peak()) ? "" : kNotNumbers;
}

// Group maxima are in groups_. The k-th largest of them is exceeded or met by at least k values,
// so everything below it is out.
void Sampler::select_top(const float* x, int k) {
  k = std::min(k, vocab_);
  float limit = kNever;
  if (static_cast<size_t>(k) < groups_.size()) {
    order_ = groups_;
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), std::greater<>());
    limit = order_[static_cast<size_t>(k - 1)];
  }
  const int found = kernels_.gather(x, size_, limit, ids_.data());
  candidates_.clear();
  for (int i = 0; i < found; ++i)
    if (ids_[static_cast<size_t>(i)] < vocab_)
      candidates_.push_back({x[ids_[static_cast<size_t>(i)]], ids_[static_cast<size_t>(i)]});
  const size_t keep = std::min(static_cast<size_t>(k), candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(keep),
                    candidates_.end(), likelier);
  candidates_.resize(keep);
}

double Sampler::total_weight() const {
  double total = 0;
  for (const float sum : groups_) total += static_cast<double>(sum);
  return total;
}

// Tokens of at least this weight into candidates_, in order of id; their total weight.
double Sampler::collect(const float* weights, float limit) {
  const int found = kernels_.gather(weights, size_, limit, ids_.data());
  candidates_.clear();
  double mass = 0;
  for (int i = 0; i < found && ids_[static_cast<size_t>(i)] < vocab_; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    candidates_.push_back({weights[id], id});
    mass += static_cast<double>(weights[id]);
  }
  return mass;
}

// The smallest set of likeliest tokens whose weights reach p of the total, into candidates_.
void Sampler::select_nucleus(const float* weights, float p) {
  const double wanted = static_cast<double>(p) * total_weight();
  if (collect(weights, kLikely) >= wanted) {
    std::sort(candidates_.begin(), candidates_.end(), likelier);
    keep_mass(wanted);
  } else {
    select_wide_nucleus(weights, wanted);
  }
}

// The same where the set is large: only the weights about its edge are sorted. Weights are counted
// in bins by their leading bits, eight to a factor of two.
void Sampler::select_wide_nucleus(const float* weights, double wanted) {
  const size_t edge = edge_bin(weights, wanted);
  const float lower = std::bit_cast<float>(static_cast<uint32_t>(edge) << kBinShift);
  const float upper = std::bit_cast<float>(static_cast<uint32_t>(edge + 1) << kBinShift);
  collect(weights, lower);
  const auto inside = std::partition(candidates_.begin(), candidates_.end(),
                                     [&](const Candidate& c) { return c.weight >= upper; });
  std::sort(inside, candidates_.end(), likelier);
  double mass = 0;
  for (auto c = candidates_.begin(); c != inside; ++c) mass += static_cast<double>(c->weight);
  auto end = inside;
  while (end != candidates_.end() && (end == candidates_.begin() || mass < wanted))
    mass += static_cast<double>((end++)->weight);
  candidates_.erase(end, candidates_.end());
}

// The bin in which the mass of the likeliest weights reaches `wanted`.
size_t Sampler::edge_bin(const float* weights, double wanted) {
  constexpr size_t bins = (0x3F800000u >> kBinShift) + 1;  // up to the weight 1
  constexpr size_t banks = 4;  // neighbours are in different ones, and need not wait
  bins_.assign(banks * bins, 0.0f);
  for (int i = 0; i < size_; i += banks)
    for (size_t b = 0; b < banks; ++b) {
      const float w = weights[i + static_cast<int>(b)];
      bins_[b * bins + (std::bit_cast<uint32_t>(w) >> kBinShift)] += w;
    }
  double above = 0;
  size_t edge = bins;
  while (edge-- > 1) {
    double mass = 0;
    for (size_t b = 0; b < banks; ++b) mass += static_cast<double>(bins_[b * bins + edge]);
    if (above + mass >= wanted) break;
    above += mass;
  }
  return edge;
}

// Shortens candidates_ to the first that together reach `wanted`; one at least.
void Sampler::keep_mass(double wanted) {
  double mass = 0;
  size_t keep = 0;
  while (keep < candidates_.size() && (keep == 0 || mass < wanted))
    mass += static_cast<double>(candidates_[keep++].weight);
  candidates_.resize(keep);
}

int32_t Sampler::draw(const SamplingSpec& spec, int position, float* x) {
  const float top = peak();
  if (spec.temperature < kGreedyBelow) return first_at(x, top);
  const double u = uniform(spec.seed, spec.choice, static_cast<uint64_t>(position) + 1);
  const float inverse = 1.0f / spec.temperature;
  if (spec.top_k > 0 && spec.top_k < vocab_) {
    select_top(x, spec.top_k);
    double total = 0;
    for (Candidate& c : candidates_) {
      c.weight = std::exp((c.weight - top) * inverse);
      total += static_cast<double>(c.weight);
    }
    if (spec.top_p < 1) keep_mass(static_cast<double>(spec.top_p) * total);
  } else {
    kernels_.exp_scaled(x, size_, top, inverse, groups_.data());
    if (spec.top_p < 1)
      select_nucleus(x, spec.top_p);
    else if (spec.min_p > 0)
      collect(x, spec.min_p);
    else
      return draw_from_all(x, u);
  }
  // The likeliest token has weight 1, so min_p is a plain limit on the weights.
  if (spec.min_p > 0)
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < spec.min_p; });
  return draw_from_candidates(u);
}

int32_t Sampler::draw_from_candidates(double uniform) const {
  double total = 0;
  for (const Candidate& c : candidates_) total += static_cast<double>(c.weight);
  double left = uniform * total;
  for (const Candidate& c : candidates_) {
    left -= static_cast<double>(c.weight);
    if (left < 0) return c.token;
  }
  return candidates_.front().token;
}

// All tokens in order of id; the sums of groups are in groups_.
int32_t Sampler::draw_from_all(const float* weights, double uniform) const {
  double left = uniform * total_weight();
  size_t group = 0;
  while (group + 1 < groups_.size() && left >= static_cast<double>(groups_[group]))
    left -= static_cast<double>(groups_[group++]);
  const int32_t first = static_cast<int32_t>(group) * kLogitGroup;
  int32_t last = first;
  for (int32_t i = first; i < first + kLogitGroup; ++i) {
    if (weights[i] == 0) continue;
    last = i;
    left -= static_cast<double>(weights[i]);
    if (left < 0) break;
  }
  return last;
}

}  // namespace headway
