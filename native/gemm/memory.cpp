#include <algorithm>
#include <cstdlib>
#include <new>

#include "aligned.hpp"
#include "gemm.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headway {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kBlock = 16 * kHugePage;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// aligned_alloc wants whole multiples of the alignment.
std::shared_ptr<uint8_t> allocate(size_t bytes, size_t alignment) {
  void* memory = std::aligned_alloc(alignment, round_up(bytes, alignment));
  if (memory == nullptr) throw std::bad_alloc();
  return std::shared_ptr<uint8_t>(static_cast<uint8_t*>(memory), [](uint8_t* p) { std::free(p); });
}

}  // namespace

std::shared_ptr<uint8_t> allocate_aligned(size_t bytes) { return allocate(bytes, kAlign); }

int16_t* widening_buffer(size_t count) {
  static thread_local std::shared_ptr<uint8_t> buffer;
  static thread_local size_t room = 0;
  if (count > room) {
    buffer = allocate(count * sizeof(int16_t), kAlign);
    room = count;
  }
  return reinterpret_cast<int16_t*>(buffer.get());
}

std::shared_ptr<uint8_t> WeightArena::take(size_t bytes) {
  const size_t wanted = round_up(bytes, kAlign);
  if (wanted > size_ - used_) {
    size_ = round_up(std::max(wanted, kBlock), kHugePage);
    block_ = allocate(size_, kHugePage);
    used_ = 0;
#if defined(__linux__)
    madvise(block_.get(), size_, MADV_HUGEPAGE);  // a wish: refused, the pages stay small
#endif
  }
  const std::shared_ptr<uint8_t> piece(block_, block_.get() + used_);
  used_ += wanted;
  return piece;
}

}  // namespace headway
