// How the ranks of a run are arranged, and the only place that computes a rank number.
// world = dp * pcp * tp, rank order dp, pcp, tp (outermost first); DCP subdivides TP without adding ranks: DCP group k
// holds tp ranks [k * dcp, (k + 1) * dcp), dcp rank = tp rank % dcp.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace braid {

struct Layout {
  int tp = 1, dcp = 1, pcp = 1, dp = 1;
  int world() const { return dp * pcp * tp; }
  std::string to_string() const;  // "tp2", "tp8 dcp4"
};

// A rank's coordinates.
struct RankPlace {
  int dp = 0, pcp = 0, tp = 0, dcp = 0;
};
RankPlace place_of(const Layout&, int rank);
std::vector<int> tp_group(const Layout&, int rank);   // global ranks, in tp order
std::vector<int> dcp_group(const Layout&, int rank);

// What a layout must divide. Zero: the model has no such dimension.
struct ModelDims {
  std::string model_type;
  int64_t heads = 0, kv_heads = 0;  // kv_heads 0: latent attention, one latent row shared by all heads
  int64_t ffn = 0, moe_ffn = 0, shared_ffn = 0;
};

// How the ranks of a DCP group share the attention of a sequence; decided before any rank starts.
struct ContextOptions {
  enum class Exchange { kAllToAll, kGatherScatter };
  int interleave = 1;                 // tokens in a run on one rank
  bool replicate_queries = false;     // every rank computes the group's query heads instead of gathering them
  bool project_before_merge = false;  // latent attention: the value up-projection comes before the exchange
  Exchange exchange = Exchange::kAllToAll;
  bool fp8_queries = false;           // they are gathered as float8
  bool from_rows = false;             // sequences with many new tokens may attend to rows; see runtime/step_parts.h
};

// Every rule that the combination breaks, each as one sentence with the numbers and the nearest legal values.
std::vector<std::string> layout_problems(const Layout&, const ModelDims&, bool reproducible);

// The part of n that part `index` of `parts` holds: equal parts, the first n % parts one longer.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Range part_of(int64_t n, int index, int parts);

}  // namespace braid
