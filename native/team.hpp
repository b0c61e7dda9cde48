// A fixed team of threads that runs one body together, in phases.
//
// Work of a phase is cut into units. Each thread first takes the units of its own share, then
// helps the others: a thread that loses its core to a neighbour delays a phase by one unit, not by
// its whole share. Which thread computes a unit never changes a result.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace headway {

class Team;

// One thread's place in the team, handed to the body.
class Worker {
 public:
  int index() const { return index_; }
  bool first() const { return index_ == 0; }

  // Runs f(unit) for each unit in [0, units), spread over the team; returns once all are done.
  // Every worker must make the same sequence of calls.
  template <class F>
  void share(int64_t units, F&& f);

  // Whether a unit of the phases so far has thrown; the same answer for every worker.
  bool failed() const;

 private:
  friend class Team;
  Worker(Team& team, int index) : team_(team), index_(index) {}
  Team& team_;
  int index_;
  uint32_t phase_ = 0;
};

class Team {
 public:
  // The caller of run() is worker 0; `threads` - 1 others are started. `spin`: wait for a bounded
  // time before sleeping (right when every thread has a core of its own, ruinous otherwise).
  Team(int threads, bool spin);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()); }

  // Runs body(worker) on all threads; rethrows the first exception of a unit.
  void run(const std::function<void(Worker&)>& body);

 private:
  friend class Worker;
  static constexpr int kSlots = 4;
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };

  void serve(int index);
  void barrier(uint32_t phase);
  void await_change(std::atomic<uint32_t>& value, uint32_t old, std::chrono::microseconds spin);
  void fail();
  Counter& counter(uint32_t phase, int worker) {
    return counters_[phase % kSlots * static_cast<uint32_t>(size()) +
                     static_cast<uint32_t>(worker)];
  }

  const bool spin_;
  std::vector<Worker> workers_;
  std::unique_ptr<Counter[]> counters_;
  alignas(64) std::atomic<uint32_t> generation_{0};  // barriers passed
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> job_{0};  // bodies started
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  bool broken_ = false;  // failed_ as of the last barrier
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const std::function<void(Worker&)>* body_ = nullptr;
  std::vector<std::thread> threads_;
};

template <class F>
void Worker::share(int64_t units, F&& f) {
  const int threads = team_.size();
  for (int i = 0; i < threads; ++i) {
    const int owner = (index_ + i) % threads;
    const int64_t begin = units * owner / threads, end = units * (owner + 1) / threads;
    std::atomic<int64_t>& next = team_.counter(phase_, owner).next;
    while (next.load(std::memory_order_relaxed) < end - begin) {
      const int64_t unit = begin + next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= end) break;
      if (team_.failed_.load(std::memory_order_relaxed)) continue;
      try {
        f(unit);
      } catch (...) {
        team_.fail();
      }
    }
  }
  team_.barrier(phase_++);
}

inline bool Worker::failed() const { return team_.broken_; }

}  // namespace headway
