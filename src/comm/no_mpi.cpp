// Stands in for the MPI carrier in builds without MPI.
#include "base/error.h"
#include "comm/world.h"

namespace braid {

std::unique_ptr<HostWorld> make_mpi_world(const WorldOptions&) {
  throw Error(
      "mpirun started several processes, but this braid was built without MPI; start one process (all ranks are its "
      "threads) or build with libopenmpi-dev and -DBRAID_MPI=ON");
}

}  // namespace braid
