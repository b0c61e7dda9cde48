#include "kv_pool.hpp"

#include <sys/mman.h>

#include <new>

namespace headway {

KvPool::KvPool(int blocks, size_t block_halves)
    : blocks_(blocks),
      block_halves_(block_halves),
      mapped_(static_cast<size_t>(blocks) * block_halves * sizeof(uint16_t)),
      data_(nullptr) {
  if (mapped_ == 0) return;
  void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(p, mapped_, MADV_HUGEPAGE);  // a hint: attention walks many blocks, a page each
#endif
  data_ = static_cast<uint16_t*>(p);
}

KvPool::~KvPool() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

}  // namespace headway
