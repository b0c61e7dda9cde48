#include <stdexcept>

#include "paths.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(HEADWAY_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headway {
namespace {

#if defined(__x86_64__)

// What the operating system saves on a context switch (XCR0).
uint64_t saved_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

struct Features {
  bool avx2 = false;
  bool avx512vnni = false;
  bool amx = false;
};

// Linux gives a process the tile registers when it asks for them.
bool tiles_granted() {
#if defined(HEADWAY_AMX)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Features detect() {
  Features found;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return found;
  constexpr uint32_t kNeeded = bit_AVX | bit_FMA | bit_F16C;
  const bool vectors = (c & kNeeded) == kNeeded;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  const uint64_t saved = saved_state();
  found.avx2 = vectors && (b & bit_AVX2) != 0 && (saved & 0x6) == 0x6;
  constexpr uint32_t kWide = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  found.avx512vnni =
      found.avx2 && (b & kWide) == kWide && (c & bit_AVX512VNNI) != 0 && (saved & 0xE6) == 0xE6;
  constexpr uint32_t kTiles = 1U << 24 | 1U << 25;  // AMX-TILE, AMX-INT8
  found.amx =
      found.avx512vnni && (d & kTiles) == kTiles && (saved & 0x60000) == 0x60000 && tiles_granted();
  return found;
}

#endif

}  // namespace

bool supports(Isa isa) {
#if defined(__x86_64__)
  static const Features kFound = detect();
  if (isa == Isa::avx2) return kFound.avx2;
  if (isa == Isa::avx512vnni) return kFound.avx512vnni;
  if (isa == Isa::amx) return kFound.amx;
#endif
  return isa == Isa::portable;
}

Isa best_isa() {
  for (const Isa isa : {Isa::amx, Isa::avx512vnni, Isa::avx2}) {
    if (supports(isa)) return isa;
  }
  return Isa::portable;
}

const Kernels& kernels(Isa isa) {
  if (!supports(isa)) throw std::invalid_argument("this processor lacks the instruction path");
#if defined(__x86_64__)
  if (isa == Isa::avx2) return kAvx2Kernels;
  if (isa == Isa::avx512vnni) return kAvx512VnniKernels;
#if defined(HEADWAY_AMX)
  if (isa == Isa::amx) return kAmxKernels;
#endif
#endif
  return kPortableKernels;
}

}  // namespace headway
