// A step as the native side holds it: copied out of the Python plan, checked before any work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sampler.hpp"

namespace headway {

class Team;

struct Capacity {
  int kv_blocks = 0;
  int host_blocks = 0;
  int max_seqs = 0;
  int max_step_tokens = 0;
  int max_model_len = 0;
  int vocab = 0;
  int units = 1;  // threads
};

struct Copy {
  int device;
  int host;
};

// Tokens of one sequence to compute; see headway.core.plan.Chunk.
struct Chunk {
  int64_t request = 0;
  std::shared_ptr<Sequence> sequence;
  std::vector<int32_t> tokens;
  std::vector<int32_t> blocks;
  int start = 0;
  bool sample = false;
  std::vector<uint8_t> mask;  // bit a token; empty allows all
  int first_row = 0;          // in the step's batch; set by Plan::finish

  int count() const { return static_cast<int>(tokens.size()); }
  int end() const { return start + count(); }
};

// What a step leaves for tests and benchmarks.
struct Trace {
  std::vector<float> hidden;  // [layers + 1][rows][hidden]: input of each layer, output of the last
  std::vector<float> logits;  // [sampling chunks][vocab]
  int rows = 0;
};

enum class Part : uint8_t { norm, qkv, attention, output, gate_up, down, head, sampling, other };
constexpr int kParts = 9;

struct Timing {
  double copy_out_s = 0;
  double copy_in_s = 0;
  double compute_s = 0;
  double parts_s[kParts] = {};
};

class Step {
 public:
  std::vector<Copy> outs, ins;
  std::vector<Chunk> chunks;
  int rows = 0;
  bool traced = false;
  int units = 0;  // threads to compute on; 0 leaves it to the lane
  int kept = 0;   // leading chunks that an interrupt leaves

  // Throws std::invalid_argument where the plan cannot be run; numbers the rows.
  void check(const Capacity& capacity);

  // Result; to be read once done.
  std::vector<Sample> samples;  // a chunk with `sample` each, in order; of those kept if interrupted
  Timing timing;
  Trace trace;
  bool interrupted = false;
  std::string error;  // empty where the step succeeded

  std::atomic<bool> interrupt{false};

  // On a team; null where it never starts.
  void start(std::shared_ptr<Team> team);
  void finish();
  bool done() const { return done_.load(); }
  // Waits up to so many seconds, negative: for ever; whether the step is done. Who waits has
  // nothing else to do, and is the last of the team's threads meanwhile: while it computes, it
  // comes back once the step is done, or after `patience_s`.
  bool wait(double timeout_s, double patience_s = -1);

 private:
  std::shared_ptr<Team> team_;
  std::atomic<bool> done_{false};
};

}  // namespace headway
