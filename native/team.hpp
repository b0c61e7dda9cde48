// A team of threads that runs one body together, in phases.
//
// Work of a phase is cut into units. Each thread first takes the units of its own share, then
// helps the others, and the phase ends when its *units* are done, not when every thread has come
// by: a thread that lost its core to a neighbour delays nobody, unless it holds a unit. It finds
// the phases it missed to be over and catches up. Which thread computes a unit never changes a
// result.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace headway {

class Team;

// One thread's place in the body.
class Worker {
 public:
  int index() const { return index_; }
  bool first() const { return index_ == 0; }

  // Runs f(unit) for each unit in [0, units), spread over the team; returns once all are done.
  // Every worker must make the same sequence of calls, though it may stop early.
  template <class F>
  void share(int64_t units, F&& f);

  // Whether a unit has thrown: the body should return soon.
  bool failed() const;

 private:
  friend class Team;
  using Clock = std::chrono::steady_clock;
  // Thrown by `share` where a guest's time is up.
  struct Late {};

  Worker(Team& team, int index, Clock::time_point until, int threads, uint32_t phase, uint32_t done)
      : team_(team), index_(index), until_(until), threads_(threads), phase_(phase), done_(done) {}

  Team& team_;
  int index_;
  Clock::time_point until_;  // its patience; that of the team's own threads has no end
  int threads_;     // that may be in the body
  uint32_t phase_;  // calls of share so far
  uint32_t done_;   // units in all of them
};

class Team {
 public:
  using Clock = std::chrono::steady_clock;

  // The caller of run() is worker 0. Of the others the last one's place is kept for a guest, where
  // `guest` says so, and the rest are started. `spin`: wait for a bounded time before sleeping
  // (right when every thread has a core of its own, ruinous otherwise).
  Team(int threads, bool spin, bool guest = false);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return threads_count_; }

  // Runs body(worker) on those of the first `threads` threads that are there in time, the caller at
  // least, and returns when all of them have left it. Rethrows the first exception of a unit.
  void run(int threads, const std::function<void(Worker&)>& body);

  // Takes the last of several places in the bodies that are run, until `over` is true or the time
  // is up; a body it is in it leaves only where its patience has come to an end too. For one caller
  // at a time; another one only waits.
  void help(Clock::time_point until, Clock::time_point patience, const std::atomic<bool>& over);
  // `over` has become true.
  void dismiss();

 private:
  friend class Worker;
  // Units taken of one thread's share: phase in the upper half, count in the lower. A count of an
  // older phase reads as zero, so nothing is ever reset.
  struct alignas(64) Share {
    std::atomic<uint64_t> taken{0};
  };

  int64_t claim(int owner, uint32_t phase, int64_t units);
  void finish_unit(uint32_t target);
  void await(uint32_t target, Clock::time_point until);
  void serve(int index);
  void work(int index, Clock::time_point until = Clock::time_point::max());
  int place_of(int index) const;
  void leave(const Worker& worker);
  void fail();

  const int threads_count_;
  const bool spin_;
  const bool has_guest_;
  std::unique_ptr<Share[]> shares_;
  alignas(64) std::atomic<uint32_t> done_{0};  // units done since the team exists
  alignas(64) std::atomic<uint32_t> jobs_{0};  // bodies begun
  std::atomic<int> active_{0};                 // threads in the body
  std::atomic<bool> failed_{false};

  std::mutex mutex_;  // of all below
  std::condition_variable left_;
  std::condition_variable news_;  // for the guest
  bool guest_here_ = false;
  bool open_ = false;  // whether the body may still be entered
  int wanted_ = 0;     // threads that may
  bool stop_ = false;
  uint32_t phase_ = 0;       // before the first call of the next body
  uint32_t last_phase_ = 0;  // any thread has begun
  uint32_t start_done_ = 0;
  std::exception_ptr error_;
  const std::function<void(Worker&)>* body_ = nullptr;
  std::vector<std::thread> threads_;
};

template <class F>
void Worker::share(int64_t units, F&& f) {
  const uint32_t phase = ++phase_;
  const uint32_t target = done_ += static_cast<uint32_t>(units);
  for (int i = 0; i < threads_; ++i) {
    const int owner = (index_ + i) % threads_;
    const int64_t begin = units * owner / threads_, end = units * (owner + 1) / threads_;
    for (int64_t n = team_.claim(owner, phase, end - begin); n >= 0;
         n = team_.claim(owner, phase, end - begin)) {
      try {
        if (!failed()) f(begin + n);
      } catch (...) {
        team_.fail();
      }
      team_.finish_unit(target);
    }
  }
  team_.await(target, until_);
}

inline bool Worker::failed() const { return team_.failed_.load(std::memory_order_relaxed); }

// The next unit of a share, or -1.
inline int64_t Team::claim(int owner, uint32_t phase, int64_t units) {
  if (units == 0) return -1;
  std::atomic<uint64_t>& taken = shares_[static_cast<size_t>(owner)].taken;
  uint64_t seen = taken.load(std::memory_order_relaxed);
  for (;;) {
    const auto age = static_cast<int32_t>(phase - static_cast<uint32_t>(seen >> 32));
    if (age < 0) return -1;  // the phase is over
    const uint64_t count = age == 0 ? seen & 0xFFFFFFFF : 0;
    if (count >= static_cast<uint64_t>(units)) return -1;
    const uint64_t next = uint64_t{phase} << 32 | (count + 1);
    if (taken.compare_exchange_weak(seen, next, std::memory_order_relaxed))
      return static_cast<int64_t>(count);
  }
}

}  // namespace headway
