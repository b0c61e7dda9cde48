// The AVX2 path.
#include "paths.hpp"
