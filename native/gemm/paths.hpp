// The instruction paths this build has; the header of gemm_*.cpp and dispatch.cpp alone.
#pragma once

#include "gemm.hpp"

namespace headway {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512VnniKernels;
#endif

}  // namespace headway
