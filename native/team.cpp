#include "team.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {

namespace {

constexpr std::chrono::microseconds kBarrierSpin{100};
constexpr std::chrono::microseconds kIdleSpin{20};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int threads, bool spin) : spin_(spin) {
  for (int i = 0; i < threads; ++i) workers_.push_back(Worker(*this, i));
  counters_ = std::make_unique<Counter[]>(static_cast<size_t>(kSlots * threads));
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  stop_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(Worker&)>& body) {
  body_ = &body;
  failed_.store(false);
  broken_ = false;
  error_ = nullptr;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  body(workers_[0]);
  workers_[0].share(0, [](int64_t) {});  // nobody is in the body any more
  if (error_) std::rethrow_exception(error_);
}

void Team::serve(int index) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  for (uint32_t seen = 0;; ++seen) {
    await_change(job_, seen, kIdleSpin);
    if (stop_.load()) return;
    (*body_)(worker);
    worker.share(0, [](int64_t) {});
  }
}

void Team::barrier(uint32_t phase) {
  const uint32_t all = static_cast<uint32_t>(size());
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < all) {
    await_change(generation_, phase, kBarrierSpin);
    return;
  }
  // The last one in: everybody has left phase - 1, so the counters two phases on are unused.
  for (int i = 0; i < size(); ++i) counter(phase + 2, i).next.store(0, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  broken_ = failed_.load(std::memory_order_relaxed);
  generation_.store(phase + 1, std::memory_order_release);
  if (all > 1) generation_.notify_all();
}

void Team::await_change(std::atomic<uint32_t>& value, uint32_t old,
                        std::chrono::microseconds spin) {
  using Clock = std::chrono::steady_clock;
  if (spin_) {
    const Clock::time_point end = Clock::now() + spin;
    do {
      for (int i = 0; i < 64; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax();
      }
    } while (Clock::now() < end);
  }
  value.wait(old, std::memory_order_acquire);
}

void Team::fail() {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  if (!error_) error_ = std::current_exception();
  failed_.store(true);
}

}  // namespace headway
