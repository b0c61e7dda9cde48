// A tiny random model on the portable path: prints the tokens it samples and a digest of every
// logit and hidden state on the way. The digest is the same on every processor; scripts/cross
// compares an emulated one with this machine's.
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>

#include "runner.hpp"

namespace headway {
namespace {

constexpr int kSteps = 24;
constexpr int kPrompt = 40;

ModelShape tiny_shape() {
  ModelShape s;
  s.layers = 2;
  s.hidden = 64;
  s.intermediate = 96;
  s.vocab = 203;
  s.heads = 3;
  s.kv_heads = 1;
  s.head_dim = 32;
  s.tied = true;
  s.rope_theta = 10000;
  s.norm_eps = 1e-5F;
  return s;
}

// Random tensors of any name, in several formats.
class RandomWeights {
 public:
  TensorSource source() {
    return {[this](const std::string& name) { return matrix(name); },
            [this](const std::string&) { return vector(); }};
  }

 private:
  SourceMatrix matrix(const std::string& name) {
    const std::string kind = name.substr(name.rfind('.') + 1);
    if (kind == "embed") return filled(WeightType::q8_0, 203, 64);
    if (kind == "q") return filled(WeightType::q4_1, 96, 64);
    if (kind == "k" || kind == "v") return filled(WeightType::q4_0, 32, 64);
    if (kind == "o") return filled(WeightType::q4_1, 64, 96);
    if (kind == "down") return filled(WeightType::q8_0, 64, 96);
    return filled(WeightType::q4_1, 96, 64);
  }

  // Small quants, and scales that are small finite numbers.
  SourceMatrix filled(WeightType type, int64_t rows, int64_t cols) {
    std::vector<uint8_t>& bytes = kept_.emplace_back();
    bytes.resize(gguf_row_bytes(type, cols) * static_cast<size_t>(rows));
    for (uint8_t& byte : bytes) byte = random_() & 31U;
    return {type, rows, cols, bytes.data(), bytes.size()};
  }

  std::vector<float> vector() {
    std::vector<float> values(64);
    for (float& value : values) value = 1 + 0.01F * static_cast<float>(random_() % 7);
    return values;
  }

  std::mt19937 random_{1};
  std::deque<std::vector<uint8_t>> kept_;
};

class Digest {
 public:
  void add(const std::vector<float>& values) {
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      state_ = (state_ ^ bits) * 1099511628211ULL;
    }
  }
  unsigned long long value() const { return state_; }

 private:
  uint64_t state_ = 1469598103934665603ULL;
};

int run() {
  RunnerOptions options;
  options.capacity = {.kv_blocks = 16, .host_blocks = 0, .max_seqs = 2, .max_step_tokens = 64,
                      .max_model_len = 128, .vocab = 203, .units = 2};
  options.spin = false;
  RandomWeights weights;
  PackedStore store("", "");
  Runner runner(build_model(tiny_shape(), weights.source(), store, 128), options);
  std::vector<int32_t> tokens(kPrompt);
  for (int i = 0; i < kPrompt; ++i) tokens[static_cast<size_t>(i)] = i * 37 % 203;
  SamplingSpec spec;
  spec.temperature = 1;
  spec.seed = 7;
  runner.open(1, spec, tokens);
  Digest digest;
  for (int i = 0, start = 0; i < kSteps; ++i) {
    const auto step = std::make_shared<Step>();
    step->traced = true;
    Chunk& chunk = step->chunks.emplace_back();
    chunk.request = 1;
    chunk.sequence = runner.find(1);
    chunk.tokens = tokens;
    chunk.start = start;
    chunk.blocks = {0, 5, 2, 9};
    chunk.sample = true;
    step->check(runner.capacity());
    runner.submit(step, 0);
    step->wait(-1);
    if (!step->error.empty()) {
      std::fprintf(stderr, "%s\n", step->error.c_str());
      return 1;
    }
    digest.add(step->trace.hidden);
    digest.add(step->trace.logits);
    start += static_cast<int>(tokens.size());
    tokens = {step->samples[0].token};
    std::printf("%d ", tokens[0]);
  }
  std::printf("\n%016llx\n", digest.value());
  runner.stop();
  return 0;
}

}  // namespace
}  // namespace headway

int main() { return headway::run(); }
