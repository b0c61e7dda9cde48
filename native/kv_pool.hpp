// Paged KV memory of one tier. Both tiers have the same layout, so a copy is one memcpy.
//
//   block:  [layer][kv head] { K [head_dim][16 tokens] | V [16 tokens][head_dim] }   fp16
#pragma once

#include <cstddef>
#include <cstdint>

namespace headway {

class KvPool {
 public:
  // Reserves address space; pages are taken when first written. Throws std::bad_alloc.
  KvPool(int blocks, size_t block_halves);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  int blocks() const { return blocks_; }
  size_t block_halves() const { return block_halves_; }
  size_t block_bytes() const { return block_halves_ * sizeof(uint16_t); }
  uint16_t* block(int id) { return data_ + static_cast<size_t>(id) * block_halves_; }
  const uint16_t* data() const { return data_; }

 private:
  int blocks_;
  size_t block_halves_;
  size_t mapped_;
  uint16_t* data_;
};

}  // namespace headway
