#include "team.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPhaseSpin{100};
constexpr std::chrono::microseconds kIdleSpin{20};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether the condition came true within the time.
template <class Condition>
bool spin_until(std::chrono::microseconds time, Condition&& condition) {
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

Team::Team(int threads, bool spin)
    : threads_count_(threads), spin_(spin), shares_(new Share[static_cast<size_t>(threads)]) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(int threads, const std::function<void(Worker&)>& body) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    body_ = &body;
    error_ = nullptr;
    start_done_ = done_.load();
    failed_.store(false);
    wanted_ = threads;
    open_ = true;
  }
  jobs_.fetch_add(1);
  if (threads > 1) jobs_.notify_all();
  work(0);
  const auto empty = [this] { return active_.load() == 0; };
  if (spin_) spin_until(kIdleSpin, empty);
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, empty);
  if (error_) std::rethrow_exception(error_);
}

void Team::serve(int index) {
  for (uint32_t seen = 0;;) {
    if (spin_) spin_until(kIdleSpin, [&] { return jobs_.load() != seen; });
    jobs_.wait(seen);
    seen = jobs_.load();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
    }
    work(index);
  }
}

// Enters the body, unless it is over already.
void Team::work(int index) {
  uint32_t phase, done;
  int threads;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_ || index >= wanted_) return;
    active_.fetch_add(1);
    threads = wanted_;
    phase = phase_;
    done = start_done_;
  }
  Worker worker(*this, index, threads, phase, done);
  (*body_)(worker);
  leave(worker);
}

void Team::leave(const Worker& worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ = false;
  last_phase_ = std::max(last_phase_, worker.phase_);
  if (active_.fetch_sub(1) > 1) return;
  phase_ = last_phase_;
  left_.notify_all();
}

void Team::finish_unit(uint32_t target) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == target && threads_count_ > 1)
    done_.notify_all();
}

// Waits until so many units are done in all.
void Team::await(uint32_t target) {
  const auto reached = [&] {
    return static_cast<int32_t>(done_.load(std::memory_order_acquire) - target) >= 0;
  };
  if (reached()) return;
  if (spin_ && spin_until(kPhaseSpin, reached)) return;
  for (;;) {
    const uint32_t seen = done_.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - target) >= 0) return;
    done_.wait(seen, std::memory_order_acquire);
  }
}

void Team::fail() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!error_) error_ = std::current_exception();
  failed_.store(true);
}

}  // namespace headway
