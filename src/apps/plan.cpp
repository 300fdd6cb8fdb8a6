// braid plan: what a layout needs and holds, without reading weights.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/error.h"
#include "base/json.h"
#include "runtime/planning.h"

namespace braid {
namespace {

const char* on_off(bool b) { return b ? "on" : "off"; }
const char* backend_of(const ContextOptions& o) { return o.exchange == ContextOptions::Exchange::kAllToAll ? "a2a" : "ag_rs"; }

void print_variants(const RunPlan& plan) {
  if (plan.variants.empty()) return;
  std::printf("%-9s %-20s %-22s %16s %12s  per decode step of one token, rank 0\n", "backend", "query replication", "project before merge", "weights B", "KV tokens");
  for (const PlanVariant& v : plan.variants) {
    int64_t calls = 0, bytes = 0;
    for (const auto& [name, c] : v.decode_collectives) {
      if (name.rfind("dcp_", 0) == 0) calls += c.calls, bytes += c.bytes;
    }
    std::printf("%-9s %-20s %-22s %16lld %12lld  %lld dcp collectives, %lld B\n", backend_of(v.options), on_off(v.options.replicate_queries),
                on_off(v.options.project_before_merge), static_cast<long long>(v.weights_bytes), static_cast<long long>(v.kv_tokens),
                static_cast<long long>(calls), static_cast<long long>(bytes));
  }
}

void print_table(const RunPlan& plan, const RankSetup& setup) {
  std::printf("%s\n%-5s %16s %16s %12s %16s %16s\n", layout_text(setup).c_str(), "rank", "weights B", "workspace B", "KV B/token", "KV B", "read B");
  for (const RankPlan& r : plan.ranks) {
    std::printf("%-5d %16lld %16lld %12.0f %16lld %16lld\n", r.rank, static_cast<long long>(r.weights_bytes), static_cast<long long>(r.workspace_bytes),
                r.kv_bytes_per_token, static_cast<long long>(r.kv_bytes), static_cast<long long>(r.file_bytes));
  }
  std::printf("%lld KV tokens fit, in %lld blocks\n", static_cast<long long>(plan.kv_tokens), static_cast<long long>(plan.n_blocks));
  for (const auto& [name, c] : plan.ranks[0].decode_collectives) {
    std::printf("a decode step of one token: %lld x %s, %lld B from rank 0\n", static_cast<long long>(c.calls), name.c_str(), static_cast<long long>(c.bytes));
  }
  const ContextUse& use = plan.ranks[0].context;
  if (use.layers == 0) return;
  std::printf("a KV block holds %lld tokens, spread over %d ranks; %d layers, of these %d with replicated queries and %d projected before the merge\n",
              static_cast<long long>(setup.virtual_block()), setup.config.layout.dcp, use.layers, use.replicated_queries, use.projected_before_merge);
  for (const ContextChoice& c : setup.context.choices) {
    std::printf("%s %s, asked %s%s%s\n", c.option.c_str(), c.active.c_str(), c.asked.c_str(), c.reason.empty() ? "" : ": ", c.reason.c_str());
  }
  print_variants(plan);
}

Json variants_json(const RunPlan& plan) {
  Json variants = Json::array();
  for (const PlanVariant& v : plan.variants) {
    variants.push_back({{"comm_backend", backend_of(v.options)}, {"enable_query_replication", v.options.replicate_queries},
                        {"enable_project_before_merge", v.options.project_before_merge}, {"weights_bytes", v.weights_bytes},
                        {"kv_tokens", v.kv_tokens}, {"decode_collectives", collectives_json(v.decode_collectives)}});
  }
  return variants;
}

Json context_json(const ContextUse& use, const ContextSetup& context) {
  Json choices = Json::array();
  for (const ContextChoice& c : context.choices) {
    choices.push_back({{"option", c.option}, {"asked", c.asked}, {"active", c.active}, {"reason", c.reason}});
  }
  return {{"layers", use.layers}, {"replicated_queries", use.replicated_queries}, {"projected_before_merge", use.projected_before_merge},
          {"choices", std::move(choices)}};
}

void print_json(const RunPlan& plan, const RankSetup& setup) {
  Json ranks = Json::array();
  for (const RankPlan& r : plan.ranks) {
    ranks.push_back({{"rank", r.rank}, {"weights_bytes", r.weights_bytes}, {"workspace_bytes", r.workspace_bytes},
                     {"kv_bytes_per_token", r.kv_bytes_per_token}, {"kv_bytes", r.kv_bytes}, {"file_bytes", r.file_bytes},
                     {"decode_collectives", collectives_json(r.decode_collectives)}});
  }
  const Json out = {{"ranks", std::move(ranks)}, {"kv_tokens", plan.kv_tokens}, {"kv_blocks", plan.n_blocks}, {"layout", layout_text(setup)},
                    {"context_parallel", context_json(plan.ranks[0].context, setup.context)}, {"variants", variants_json(plan)}};
  std::printf("%s\n", to_string(out, 1).c_str());
}

}  // namespace

int run_plan(const Arguments& arguments) {
  EngineConfig config;
  std::string memory;
  bool json = false;
  OptionTable table("plan");
  table.add("memory", &memory, "memory of each rank's device: 141G (10^9 bytes), 128GiB (2^30); default: this machine's");
  table.add("json", &json, "print a JSON object");
  add_engine_options(table, config);
  std::vector<std::string> problems;
  if (parse_or_help("plan", "memory and layout, without reading weights", table, arguments, problems)) return kOk;
  default_to_dummy_weights(table, config);
  int64_t memory_bytes = 0;
  try {
    if (!memory.empty()) memory_bytes = parse_bytes(memory);
  } catch (const Error& e) {
    problems.push_back(std::string("--memory: ") + e.what());
  }
  const RankSetup setup = resolve(config, problems);
  if (!problems.empty()) return refuse("plan", problems);
  const RunPlan plan = plan_run(setup, memory_bytes);
  json ? print_json(plan, setup) : print_table(plan, setup);
  return kOk;
}

}  // namespace braid
