#define HEADWAY_ISA 1
#define HEADWAY_ISA_NS avx2
#include "kernels/table.inl"
