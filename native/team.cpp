#include "team.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {

namespace {

using Clock = Team::Clock;

constexpr std::chrono::microseconds kPhaseSpin{100};
constexpr std::chrono::microseconds kIdleSpin{20};
constexpr std::chrono::microseconds kGuestNap{50};
constexpr int kGuest = -1;

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

Team::Team(int threads, bool spin, bool guest)
    : threads_count_(threads),
      spin_(spin),
      has_guest_(guest && threads > 1),
      shares_(new Share[static_cast<size_t>(threads)]) {
  const int own = threads - (has_guest_ ? 1 : 0);
  for (int i = 1; i < own; ++i) threads_.emplace_back([this, i] { serve(i); });
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
    jobs_.fetch_add(1);
  }
  if (threads > 1) {
    jobs_.notify_all();
    news_.notify_all();
  }
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

void Team::help(Clock::time_point until, Clock::time_point patience,
                const std::atomic<bool>& over) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool helps = has_guest_ && !guest_here_;
  guest_here_ = guest_here_ || helps;
  for (uint32_t seen = 0; !over.load();) {
    const auto news = [&] { return over.load() || (helps && open_ && jobs_.load() != seen); };
    if (!news_.wait_until(lock, until, news)) break;
    seen = jobs_.load();
    lock.unlock();
    work(kGuest, patience);
    if (spin_) spin_until(kIdleSpin, [&] { return over.load() || jobs_.load() != seen; });
    lock.lock();
  }
  if (helps) guest_here_ = false;
}

void Team::dismiss() {
  const std::lock_guard<std::mutex> lock(mutex_);
  news_.notify_all();
}

// Of a thread in the present body; -1 for none.
int Team::place_of(int index) const {
  const int own = has_guest_ && wanted_ > 1 ? wanted_ - 1 : wanted_;
  if (index == kGuest) return own < wanted_ ? own : -1;
  return index < own ? index : -1;
}

// Enters the body, unless it is over already.
void Team::work(int index, Clock::time_point until) {
  uint32_t phase, done;
  int threads, place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    place = place_of(index);
    if (!open_ || place < 0) return;
    active_.fetch_add(1);
    threads = wanted_;
    phase = phase_;
    done = start_done_;
  }
  Worker worker(*this, place, until, threads, phase, done);
  try {
    (*body_)(worker);
  } catch (const Worker::Late&) {  // the others go on
  }
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

// Waits until so many units are done in all. A guest, whose time may come to an end, takes naps
// where others sleep: an atomic can't be waited for with a limit.
void Team::await(uint32_t target, Clock::time_point until) {
  const auto reached = [&] {
    return static_cast<int32_t>(done_.load(std::memory_order_acquire) - target) >= 0;
  };
  if (reached()) return;
  if (spin_ && spin_until(kPhaseSpin, reached)) return;
  if (until != Clock::time_point::max()) {
    for (; !reached(); std::this_thread::sleep_for(kGuestNap))
      if (Clock::now() >= until) throw Worker::Late{};
    return;
  }
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
