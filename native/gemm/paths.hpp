// The instruction paths this build has; for the files of this folder alone.
#pragma once

#include "gemm.hpp"

namespace headway {

// Constant-initialised, every one: code that ran while the library loads could use instructions the
// processor lacks.
extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512VnniKernels;
#if defined(HEADWAY_AMX)
extern const Kernels kAmxKernels;
#endif

// What is no matrix product, shared by the vector paths; see Kernels.
namespace avx2 {
void quantize(const float* x, const QuantActs& out, int64_t token, Range groups);
void rmsnorm(const float* x, const float* weight, float eps, const QuantActs& out, int64_t token);
void silu_mul(const float* gate, const float* up, const QuantActs& out, int64_t token,
              Range groups);
}  // namespace avx2
#endif

}  // namespace headway
