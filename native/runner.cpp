#include "runner.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace headway {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

const VectorKernels& vector_kernels(Isa isa) {
#ifdef HEADWAY_X86
  if (isa >= Isa::avx512vnni) return kernels_avx512();
  if (isa == Isa::avx2) return kernels_avx2();
#endif
  (void)isa;
  return kernels_portable();
}

Lane::Lane(const Model& model, Path path, KvPool& device, KvPool& host, int threads, bool spin,
           int default_threads, int max_rows)
    : device_(device),
      host_(host),
      default_threads_(default_threads),
      team_(std::make_shared<Team>(threads, spin, true)),
      forward_(model, path, device, threads, max_rows),
      thread_([this] { serve(); }) {}

Lane::~Lane() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Lane::submit(std::shared_ptr<Step> step) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (step_) throw std::logic_error("a step is in flight on this lane");
    step->start(team_);
    step_ = std::move(step);
  }
  changed_.notify_one();
}

void Lane::serve() {
  for (;;) {
    std::shared_ptr<Step> step;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return step_ || stop_; });
      if (!step_) return;
      step = step_;
    }
    try {
      run(*step);
    } catch (const std::exception& e) {
      step->error = e.what();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      step_.reset();
    }
    step->finish();
  }
}

void Lane::run(Step& step) {
  const auto phase = [](double& seconds, auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds = seconds_since(start);
  };
  const int threads = step.units > 0 ? step.units : default_threads_;
  phase(step.timing.copy_out_s, [&] { copy(step.outs, true, threads); });
  phase(step.timing.copy_in_s, [&] { copy(step.ins, false, threads); });
  phase(step.timing.compute_s, [&] { forward_.run(step, *team_, threads); });
}

void Lane::copy(const std::vector<Copy>& copies, bool out, int threads) {
  if (copies.empty()) return;
  team_->run(threads, [&](Worker& worker) {
    worker.share(static_cast<int64_t>(copies.size()), [&](int64_t i) {
      const Copy& c = copies[static_cast<size_t>(i)];
      uint16_t* const device = device_.block(c.device);
      uint16_t* const host = host_.block(c.host);
      std::memcpy(out ? host : device, out ? device : host, device_.block_bytes());
    });
  });
}

Runner::Runner(Model model, const RunnerOptions& options)
    : options_(options),
      model_(std::move(model)),
      path_{kernels(options.isa), vector_kernels(options.isa)},
      device_(options.capacity.kv_blocks, model_.shape.block_halves()),
      host_(options.capacity.host_blocks, model_.shape.block_halves()) {}

void Runner::open(int64_t request, SamplingSpec spec, std::vector<int32_t> prompt) {
  sequences_[request] = std::make_shared<Sequence>(std::move(spec), std::move(prompt));
}

void Runner::close(int64_t request) { sequences_.erase(request); }

std::shared_ptr<Sequence> Runner::find(int64_t request) const {
  const auto found = sequences_.find(request);
  if (found == sequences_.end())
    throw std::invalid_argument("invalid plan: unknown request " + std::to_string(request));
  return found->second;
}

void Runner::submit(std::shared_ptr<Step> step, int lane_index) {
  lane(lane_index).submit(std::move(step));
}

void Runner::stop() {
  for (std::unique_ptr<Lane>& lane : lanes_) lane.reset();
}

// Lanes are made when first used, with as many threads as there are; a plan says how many of them
// compute. Left to the executor, the unified lane has all, and the other two share them.
Lane& Runner::lane(int index) {
  if (index < 0 || index >= kLanes) throw std::invalid_argument("invalid plan: unknown lane");
  std::unique_ptr<Lane>& lane = lanes_[index];
  if (!lane) {
    const Capacity& capacity = options_.capacity;
    const int all = capacity.units, decode = std::max(1, all / 2);
    const int by_default = index == 0 ? all : index == 1 ? std::max(1, all - decode) : decode;
    lane = std::make_unique<Lane>(model_, path_, device_, host_, all, options_.spin, by_default,
                                  capacity.max_step_tokens);
  }
  return *lane;
}

}  // namespace headway
