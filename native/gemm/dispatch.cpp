#include <stdexcept>

#include "paths.hpp"

namespace headway {

bool supports(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
    case Isa::avx512vnni:
      return false;
  }
  return false;
}

Isa best_isa() {
  if (supports(Isa::avx512vnni)) return Isa::avx512vnni;
  return supports(Isa::avx2) ? Isa::avx2 : Isa::portable;
}

const Kernels& kernels(Isa isa) {
  if (!supports(isa)) throw std::invalid_argument("this processor lacks the instruction path");
  return kPortableKernels;
}

}  // namespace headway
