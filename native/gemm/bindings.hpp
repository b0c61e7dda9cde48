// Test surface of native/gemm: whole matrices as numpy arrays.
#pragma once

#include <nanobind/nanobind.h>

namespace headway {

void bind_gemm(nanobind::module_& module);

}  // namespace headway
