// What a rank holds of a tensor, by the tensor's role in the model, and what follows its product. Model files name roles;
// ranks, groups and collectives are known here only. A parallel strategy is a column of this table.
#pragma once
#include <memory>

#include "comm/comm.h"
#include "parallel/layout.h"

namespace braid {

enum class Role {
  kReplicated,   // whole on every rank: norms, latent down-projections, router
  kEmbed,        // rows of the vocabulary; the looked-up rows are summed over ranks
  kHeads,        // output rows by query head
  kGroupHeads,   // the same of all ranks of the DCP group, which all hold them
  kKvHeads,      // output rows by key/value head; replicated where there are fewer heads than ranks
  kAttnOut,      // input columns by query head; partial results are summed
  kGateUp,       // output rows by feed-forward column
  kDown,         // input columns by feed-forward column; partial results are summed
  kLmHead,       // rows of the vocabulary; logits are gathered
};

enum class Split { kNone, kRows, kColumns };          // of the weight [out, in]
enum class After { kNothing, kAllReduce, kAllGather };  // what makes the product whole again

struct Placement {
  Split split = Split::kNone;
  int part = 0, parts = 1;
  After after = After::kNothing;
};

// A pure function, for a rank's loading, for `braid plan` and for the tests that assert bytes against it.
Placement place(Role role, const Layout& layout, int tp_rank, int64_t kv_heads = 0);

// One rank's place in the run and its groups.
class Parallel {
 public:
  Parallel(const Layout& layout, int rank, World& world, bool reproducible, const ContextOptions& context = {});

  const Layout& layout() const { return layout_; }
  int rank() const { return rank_; }
  RankPlace where() const { return where_; }
  Placement place(Role role, int64_t kv_heads = 0) const { return braid::place(role, layout_, where_.tp, kv_heads); }
  Comm& tp() const { return *tp_; }
  Comm& dcp() const { return *dcp_; }
  const ContextOptions& context() const { return context_; }

  // Slices per rank of a product whose K is split over tp: 8 over all ranks in reproducible mode, else one.
  int k_slices() const { return reproducible_ ? kCanonicalSlices / layout_.tp : 1; }
  bool reproducible() const { return reproducible_; }
  static constexpr int kCanonicalSlices = 8;

 private:
  Layout layout_;
  int rank_;
  RankPlace where_;
  bool reproducible_;
  ContextOptions context_;
  std::unique_ptr<Comm> tp_, dcp_;
};

}  // namespace braid
