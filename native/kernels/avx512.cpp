#define HEADWAY_ISA 2
#define HEADWAY_ISA_NS avx512
#include "kernels/table.inl"
