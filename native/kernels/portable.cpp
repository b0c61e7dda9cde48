#define HEADWAY_ISA 0
#define HEADWAY_ISA_NS portable
#include "kernels/table.inl"
