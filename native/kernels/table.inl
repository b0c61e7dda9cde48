// The table of one instruction set. The including file defines HEADWAY_ISA and HEADWAY_ISA_NS.
#include <type_traits>
#include <utility>

#include "kernels/kernels.hpp"
#include "kernels/vec.hpp"

#include "kernels/attention.inl"
#include "kernels/rows.inl"

#define HEADWAY_JOIN_(a, b) a##b
#define HEADWAY_JOIN(a, b) HEADWAY_JOIN_(a, b)

namespace headway {

const VectorKernels& HEADWAY_JOIN(kernels_, HEADWAY_ISA_NS)() {
  using namespace HEADWAY_ISA_NS;
  static constexpr VectorKernels table = {
      attend,  merge,   normalise, rope,    head_norm,  add,
      store_k, store_v, group_max, sum_exp, exp_scaled, gather,
  };
  return table;
}

}  // namespace headway
