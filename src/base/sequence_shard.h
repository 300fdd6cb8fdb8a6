// How one sequence's KV rows are dealt to the ranks of a decode-context-parallel group: the only place that turns
// global token positions into rank-local ones. Tokens go round robin in runs of `interleave` (S):
//
//   position g      0 1 2 3 4 5 6 7 ...        W = 2 ranks, S = 2
//   owner           0 0 1 1 0 0 1 1
//   local position  0 1 0 1 2 3 2 3
//
// One block-table entry names a virtual block of block_size * n_ranks tokens, of which every rank holds block_size
// rows under the same block id. Requires block_size % interleave == 0, or a run would straddle two entries. All
// functions are constexpr and serve host code and kernels alike. With n_ranks 1 everything is the identity.
#pragma once
#include <cstdint>

#include "base/types.h"

#if defined(__CUDACC__)
#define BRAID_HOST_DEVICE __host__ __device__
#else
#define BRAID_HOST_DEVICE
#endif

namespace braid {

struct SequenceShard {
  int n_ranks = 1;     // W, size of the DCP group
  int interleave = 1;  // S, tokens in a run
  int block_size = 16; // KV rows of one block on one rank
  int rank = 0;        // this rank's place in the group

  BRAID_HOST_DEVICE constexpr int64_t virtual_block() const { return int64_t{block_size} * n_ranks; }
  // Tokens of one turn over the ranks. A position that is a multiple of it has the same local index on every rank.
  BRAID_HOST_DEVICE constexpr int64_t round() const { return int64_t{interleave} * n_ranks; }

  BRAID_HOST_DEVICE constexpr int owner(TokenPos g) const {
    return static_cast<int>((g.value / interleave) % n_ranks);
  }
  BRAID_HOST_DEVICE constexpr bool owns(TokenPos g) const { return owner(g) == rank; }

  // Index of g among the rows of its owner.
  BRAID_HOST_DEVICE constexpr LocalPos local(TokenPos g) const {
    return LocalPos((g.value / round()) * interleave + g.value % interleave);
  }

  // Inverse of local() on this rank.
  BRAID_HOST_DEVICE constexpr TokenPos global(LocalPos j) const {
    return TokenPos(((j.value / interleave) * n_ranks + rank) * interleave + j.value % interleave);
  }

  // Rows that this rank holds of positions [0, n): its local length for a sequence of n tokens, and the causal window
  // of a query at position n - 1. Summed over the ranks this is n.
  BRAID_HOST_DEVICE constexpr int64_t local_length(int64_t n) const {
    const int64_t rest = n % round() - int64_t{rank} * interleave;
    const int64_t partial = rest < 0 ? 0 : rest > interleave ? interleave : rest;
    return (n / round()) * interleave + partial;
  }

  // Block-table column of g, and of how many entries a sequence of n tokens needs.
  BRAID_HOST_DEVICE constexpr int64_t table_column(TokenPos g) const { return g.value / virtual_block(); }
  BRAID_HOST_DEVICE constexpr int64_t table_columns(int64_t n) const {
    return (n + virtual_block() - 1) / virtual_block();
  }

  // Slot of the row with local index j, given the table entry of its column j / block_size.
  BRAID_HOST_DEVICE constexpr SlotId slot(BlockId block, LocalPos j) const {
    return SlotId(block.value * block_size + j.value % block_size);
  }
};

}  // namespace braid
