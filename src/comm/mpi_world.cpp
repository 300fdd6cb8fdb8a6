// The MPI carrier's world.
#include "base/error.h"
#include "comm/world.h"

namespace braid {
std::unique_ptr<World> make_mpi_world(const WorldOptions&) { throw Error("the MPI carrier is not there yet"); }
}  // namespace braid
