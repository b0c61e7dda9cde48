// Weights on their way into a thread's cache before it needs them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headway {

#ifndef AHEAD_BYTES
#define AHEAD_BYTES 0
#endif
#ifndef AHEAD_FIRST
#define AHEAD_FIRST 0
#endif
// What a thread will read in the next phase. Brought in while it waits for the others, so that
// memory is not idle between two phases: a step of one row is little else than reading.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const uint8_t* begin, const uint8_t* end)
      : at_(begin), end_(begin + std::min<ptrdiff_t>(end - begin, kMost)) {}

  bool empty() const { return at_ >= end_; }

  // As much as is under way at once.
  void begin() { bring(kFirst); }
  void some() { bring(kSome); }

 private:
  static constexpr ptrdiff_t kLine = 64;
  static constexpr ptrdiff_t kMost = AHEAD_BYTES;   // a part of the L2 cache
  static constexpr ptrdiff_t kFirst = AHEAD_FIRST;
  static constexpr ptrdiff_t kSome = 4 * kLine;

  void bring(ptrdiff_t bytes) {
    const uint8_t* const to = std::min(end_, at_ + bytes);
    for (; at_ < to; at_ += kLine) __builtin_prefetch(at_, 0, 2);
  }

  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
};

}  // namespace headway
