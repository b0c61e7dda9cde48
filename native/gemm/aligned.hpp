// Memory aligned to cache lines, for packed weights and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headway {

inline constexpr size_t kAlign = 64;

// Uninitialised; throws std::bad_alloc.
std::shared_ptr<uint8_t> allocate_aligned(size_t bytes);

}  // namespace headway
