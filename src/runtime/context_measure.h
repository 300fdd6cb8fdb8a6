// What a decode-context-parallel group's messages and a rank's weights cost on this machine, measured before anything is
// loaded: the ground on which "auto" in --dcp-config is decided.
#pragma once
#include "comm/comm.h"
#include "runtime/setup.h"

namespace braid {

// Collective over all ranks; every rank gets the same figures, those of the slowest.
ContextCosts measure_context(const RankSetup&, int rank, World&, Backend&);

}  // namespace braid
