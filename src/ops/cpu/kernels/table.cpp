// The level's table.
#include "ops/cpu/kernels/table.h"

#include "ops/cpu/kernels/vec.h"

#define BRAID_TEXT_OF(x) #x
#define BRAID_TEXT(x) BRAID_TEXT_OF(x)

namespace braid::BRAID_LEVEL {

const Kernels& kernels() {
  static const Kernels table = [] {
    Kernels t{};
    t.level = BRAID_TEXT(BRAID_LEVEL) + sizeof("cpu_") - 1;
    t.lanes = kLanes;
    t.panel = kPanel;
    add_products(t);
    add_attention(t);
    add_rows(t);
    add_ceilings(t);
    return t;
  }();
  return table;
}

}  // namespace braid::BRAID_LEVEL
