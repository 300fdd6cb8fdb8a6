#include "parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace braid {

std::string Layout::to_string() const {
  std::string s = fmt::format("tp{}", tp);
  if (dcp > 1) s += fmt::format(" dcp{}", dcp);
  if (pcp > 1) s += fmt::format(" pcp{}", pcp);
  if (dp > 1) s += fmt::format(" dp{}", dp);
  return s;
}

RankPlace place_of(const Layout& l, int rank) {
  RankPlace p;
  p.tp = rank % l.tp;
  p.pcp = rank / l.tp % l.pcp;
  p.dp = rank / (l.tp * l.pcp);
  p.dcp = p.tp % l.dcp;
  return p;
}

std::vector<int> tp_group(const Layout& l, int rank) {
  std::vector<int> ranks;
  const int first = rank - rank % l.tp;
  for (int i = 0; i < l.tp; ++i) ranks.push_back(first + i);
  return ranks;
}

std::vector<int> dcp_group(const Layout& l, int rank) {
  std::vector<int> ranks;
  const int first = rank - rank % l.dcp;
  for (int i = 0; i < l.dcp; ++i) ranks.push_back(first + i);
  return ranks;
}

namespace {

// "1, 2, 4 or 8": the values up to `limit` that satisfy a rule.
template <typename Rule>
std::string legal_values(int limit, Rule rule) {
  std::vector<std::string> values;
  for (int v = 1; v <= limit; ++v) {
    if (rule(v)) values.push_back(std::to_string(v));
  }
  if (values.size() == 1) return values[0];
  std::string last = values.back();
  values.pop_back();
  return fmt::format("{} or {}", fmt::join(values, ", "), last);
}

void check_divides(std::vector<std::string>& problems, const Layout& l, const char* what, int64_t n) {
  if (n > 0 && n % l.tp != 0) {
    problems.push_back(fmt::format("--tensor-parallel-size {} does not divide {} = {}; use {}", l.tp, what, n,
                                   legal_values(64, [&](int v) { return n % v == 0; })));
  }
}

// The ranks of a DCP group hold parts of the same rows, so they must share their KV heads. A latent row is every head's.
void check_context_groups(std::vector<std::string>& problems, const Layout& l, const ModelDims& m) {
  if (l.dcp == 1 || m.kv_heads == 0 || l.tp % l.dcp != 0) return;
  const int64_t copies = std::max<int64_t>(1, l.tp / m.kv_heads);  // neighbouring ranks with the same KV heads
  if (copies % l.dcp == 0) return;
  problems.push_back(fmt::format(
      "--decode-context-parallel-size {} needs groups of ranks that hold the same KV heads, but with num_key_value_heads {} and "
      "--tensor-parallel-size {} only {} ranks share a head; use {}",
      l.dcp, m.kv_heads, l.tp, copies, legal_values(static_cast<int>(copies), [&](int v) { return copies % v == 0; })));
}

}  // namespace

std::vector<std::string> layout_problems(const Layout& l, const ModelDims& m, bool reproducible) {
  std::vector<std::string> problems;
  for (auto [name, value] : {std::pair{"tensor", l.tp}, {"decode-context", l.dcp}, {"prefill-context", l.pcp}, {"data", l.dp}}) {
    if (value < 1) problems.push_back(fmt::format("--{}-parallel-size {} must be at least 1", name, value));
  }
  if (!problems.empty()) return problems;
  if (l.tp % l.dcp != 0) {
    problems.push_back(fmt::format("--decode-context-parallel-size {} does not divide --tensor-parallel-size {}; use {}", l.dcp, l.tp,
                                   legal_values(l.tp, [&](int v) { return l.tp % v == 0; })));
  }
  check_context_groups(problems, l, m);
  if (l.pcp > 1) problems.push_back("--prefill-context-parallel-size above 1 is not built yet");
  if (l.dp > 1) problems.push_back("--data-parallel-size above 1 is not built yet");
  check_divides(problems, l, "num_attention_heads", m.heads);
  check_divides(problems, l, "intermediate_size", m.ffn);
  check_divides(problems, l, "moe_intermediate_size", m.moe_ffn);
  check_divides(problems, l, "the shared experts' width", m.shared_ffn);
  if (m.kv_heads > 0 && l.tp % m.kv_heads != 0 && m.kv_heads % l.tp != 0) {
    problems.push_back(fmt::format(
        "--tensor-parallel-size {} and num_key_value_heads {} do not divide one another; use {}", l.tp, m.kv_heads,
        legal_values(64, [&](int v) { return (v % m.kv_heads == 0 || m.kv_heads % v == 0) && m.heads % v == 0; })));
  }
  if (reproducible) {
    const int n = l.tp * l.pcp;
    if (n != 1 && n != 2 && n != 4 && n != 8) {
      problems.push_back(fmt::format("--reproducible cuts every row-parallel product into 8 slices, so tp * pcp must be 1, 2, 4 or 8, not {}", n));
    }
    for (auto [what, k] : {std::pair{"num_attention_heads", m.heads}, {"intermediate_size", m.ffn},
                           {"moe_intermediate_size", m.moe_ffn}, {"the shared experts' width", m.shared_ffn}}) {
      if (k % 8 != 0) problems.push_back(fmt::format("--reproducible cuts {} = {} into 8 equal slices; it must be a multiple of 8", what, k));
    }
  }
  return problems;
}

Range part_of(int64_t n, int index, int parts) {
  const int64_t base = n / parts, longer = n % parts;
  const int64_t begin = index * base + std::min<int64_t>(index, longer);
  return {begin, begin + base + (index < longer ? 1 : 0)};
}

}  // namespace braid
