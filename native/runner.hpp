// Runs steps: a lane is a thread that owns a team and the activations, and takes one step at a
// time; the runner owns model, KV pools, sequences and lanes.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "forward.hpp"
#include "kv_pool.hpp"
#include "model.hpp"
#include "plan.hpp"
#include "team.hpp"

namespace headway {

struct RunnerOptions {
  Capacity capacity;
  bool spin = true;  // every thread has a CPU of its own
  Isa isa = Isa::portable;
};

class Lane {
 public:
  Lane(const Model& model, Path path, KvPool& device, KvPool& host, int threads, bool spin,
       int default_threads, int max_rows);
  ~Lane();  // ends the step in flight first
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Throws std::logic_error while a step is in flight.
  void submit(std::shared_ptr<Step> step);

 private:
  void serve();
  void run(Step& step);
  void copy(const std::vector<Copy>& copies, bool out, int threads);

  KvPool& device_;
  KvPool& host_;
  const int default_threads_;
  const std::shared_ptr<Team> team_;  // a step's guest may stay a moment longer than the lane
  Forward forward_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Step> step_;
  bool stop_ = false;
  std::thread thread_;
};

class Runner {
 public:
  Runner(Model model, const RunnerOptions& options);

  const Capacity& capacity() const { return options_.capacity; }
  size_t block_bytes() const { return device_.block_bytes(); }
  KvPool& device() { return device_; }
  KvPool& host() { return host_; }

  // The state of requests is changed by the thread that submits, alone.
  void open(int64_t request, SamplingSpec spec, std::vector<int32_t> prompt);
  void close(int64_t request);
  std::shared_ptr<Sequence> find(int64_t request) const;

  // Starts a step that has been checked. Throws std::logic_error while the lane is busy.
  void submit(std::shared_ptr<Step> step, int lane);
  // Ends the steps in flight, then the lanes' threads.
  void stop();

 private:
  Lane& lane(int index);

  static constexpr int kLanes = 3;  // unified, prefill, decode
  RunnerOptions options_;
  Model model_;
  Path path_;
  KvPool device_, host_;
  std::unordered_map<int64_t, std::shared_ptr<Sequence>> sequences_;
  std::unique_ptr<Lane> lanes_[kLanes];
};

// The vector kernels that go with a path of the products.
const VectorKernels& vector_kernels(Isa isa);

}  // namespace headway
