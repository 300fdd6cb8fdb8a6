// Each file of this folder fills its part of the level's table.
#pragma once
#include "ops/cpu/kernels.h"

namespace braid::BRAID_LEVEL {

void add_products(Kernels&);
void add_attention(Kernels&);
void add_rows(Kernels&);
void add_ceilings(Kernels&);

}  // namespace braid::BRAID_LEVEL
