#include "runtime/context_setup.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace braid {
namespace {

enum class Switch { kOff, kOn, kAuto };

struct Asked {
  int interleave = 1;
  Switch replicate = Switch::kOn, project = Switch::kOn;
  std::string backend = "a2a";
};

const char* text_of(Switch s) { return s == Switch::kOn ? "on" : s == Switch::kOff ? "off" : "auto"; }

std::optional<Switch> read_switch(const std::string& key, const Json& value, std::vector<std::string>& problems) {
  if (value.is_boolean()) return value.get<bool>() ? Switch::kOn : Switch::kOff;
  if (value == "auto") return Switch::kAuto;
  problems.push_back(fmt::format("--dcp-config: {} is {}; use true, false or \"auto\"", key, to_string(value)));
  return std::nullopt;
}

void read_setting(const std::string& key, const Json& value, Asked& asked, std::vector<std::string>& problems) {
  if (key == "interleave_size") {
    if (value.is_number_integer() && value >= 1 && value <= 65536) {
      asked.interleave = value.get<int>();
    } else {
      problems.push_back(fmt::format("--dcp-config: interleave_size is {}; use a whole number from 1 to 65536", to_string(value)));
    }
  } else if (key == "enable_query_replication") {
    asked.replicate = read_switch(key, value, problems).value_or(asked.replicate);
  } else if (key == "enable_project_before_merge") {
    asked.project = read_switch(key, value, problems).value_or(asked.project);
  } else if (key == "comm_backend") {
    if (value == "a2a" || value == "ag_rs") {
      asked.backend = value.get<std::string>();
    } else {
      problems.push_back(fmt::format("--dcp-config: comm_backend is {}; use \"a2a\" or \"ag_rs\"", to_string(value)));
    }
  } else {
    problems.push_back(fmt::format("--dcp-config: '{}' is unknown; the keys are interleave_size, enable_query_replication, "
                                   "enable_project_before_merge and comm_backend", key));
  }
}

// A value under its vLLM name beside the same setting in --dcp-config must not contradict it.
template <typename T>
void take_alias(const char* option, const char* key, const Json& config, const T& alias, T& value, std::vector<std::string>& problems) {
  if (alias == T{}) return;
  if (config.contains(key) && config[key] != alias) {
    problems.push_back(fmt::format("{} {} contradicts {} {} in --dcp-config; give one of them", option, alias, key, to_string(config[key])));
  }
  value = alias;
}

Asked read_config(const EngineConfig& c, std::vector<std::string>& problems) {
  Asked asked;
  Json config = Json::object();
  if (!c.dcp_config.empty()) {
    config = Json::parse(c.dcp_config, nullptr, false);
    if (!config.is_object()) {
      problems.push_back(fmt::format("--dcp-config '{}' is not a JSON object, such as '{{\"interleave_size\": 16}}'", c.dcp_config));
      config = Json::object();
    }
  }
  for (const auto& [key, value] : config.items()) read_setting(key, value, asked, problems);
  take_alias("--dcp-kv-cache-interleave-size", "interleave_size", config, c.dcp_interleave, asked.interleave, problems);
  take_alias("--dcp-comm-backend", "comm_backend", config, c.dcp_comm_backend, asked.backend, problems);
  return asked;
}

void check_interleave(const EngineConfig& c, int interleave, std::vector<std::string>& problems) {
  if (c.block_size % interleave != 0) {
    int legal = interleave < c.block_size ? interleave : c.block_size;
    while (c.block_size % legal != 0) --legal;
    problems.push_back(fmt::format("interleave_size {} does not divide --block-size {}, so a run of tokens would straddle two blocks; use {}",
                                   interleave, c.block_size, legal));
  }
  if (interleave > 1 && c.layout.dcp == 1 && !c.reproducible) {
    problems.push_back(fmt::format("interleave_size {} needs --decode-context-parallel-size above 1, or --reproducible, where it lays out "
                                   "the stripes of a sum; use 1", interleave));
  }
}

const char* ground(const ContextCosts& costs) { return costs.measured ? "measured" : "estimated"; }

double per_layer_heads(const EngineConfig& c, const ModelConfig& m) { return static_cast<double>(m.n_heads) / c.layout.tp; }

// Replicating costs every step the reading of the other ranks' query weights; gathering costs it a small collective.
ContextChoice choose_replication(const EngineConfig& c, const ModelConfig& m, DType compute, const ContextCosts& costs, Switch asked,
                                 bool& active) {
  ContextChoice choice{"enable_query_replication", text_of(asked), "", ""};
  active = asked == Switch::kOn;
  if (asked == Switch::kAuto) {
    double per_head = static_cast<double>(m.head_dim * m.hidden);
    if (m.mla) {
      const int64_t in = m.mla->q_lora_rank > 0 ? m.mla->q_lora_rank : m.hidden;
      per_head = static_cast<double>((m.mla->qk_nope + m.mla->qk_rope) * in + m.mla->qk_nope * m.mla->kv_lora_rank);
    }
    const double bytes = per_layer_heads(c, m) * (c.layout.dcp - 1) * per_head * size_of(compute);
    const double cost = bytes / costs.weight_bytes_per_microsecond;
    active = cost < costs.gather;
    choice.reason = fmt::format("{}: the group's query weights are {:.1f} us a layer to read, gathering queries is {:.1f} us", ground(costs), cost,
                                costs.gather);
  }
  choice.active = active ? "on" : "off";
  return choice;
}

// The same of the other ranks' value up-projections against the bytes that a projected result saves.
ContextChoice choose_projection(const EngineConfig& c, const ModelConfig& m, DType compute, const ContextCosts& costs, Switch asked,
                                bool& active) {
  ContextChoice choice{"enable_project_before_merge", text_of(asked), "", ""};
  active = false;
  if (!m.mla) {
    choice.reason = "grouped-query attention has no value up-projection";
  } else if (c.reproducible) {
    choice.reason = "--reproducible: in floating point the projection of a sum is not the sum of the projections";
  } else if (asked == Switch::kAuto) {
    const ContextMessages messages = messages_of(c, m, compute);
    auto time = [&](double measured, int64_t bytes) {
      return costs.measured ? measured : costs.gather + static_cast<double>(bytes * c.layout.dcp) / costs.weight_bytes_per_microsecond;
    };
    const double bytes = per_layer_heads(c, m) * (c.layout.dcp - 1) * static_cast<double>(m.mla->v_head * m.mla->kv_lora_rank) * size_of(compute);
    const double cost = bytes / costs.weight_bytes_per_microsecond;
    const double plain = time(costs.exchange, messages.result), projected = time(costs.exchange_projected, messages.projected);
    active = cost + projected < plain;
    choice.reason = fmt::format("{}: the group's value weights are {:.1f} us a layer to read, exchanging results is {:.1f} us projected and "
                                "{:.1f} us as they are", ground(costs), cost, projected, plain);
  } else {
    active = asked == Switch::kOn;
  }
  choice.active = active ? "on" : "off";
  return choice;
}

ContextChoice choose_fp8_query(const EngineConfig& c, const ContextOptions& options, bool& active, std::vector<std::string>& problems) {
  ContextChoice choice{"fp8-query", c.fp8_query ? "on" : "off", "off", ""};
  active = false;
  if (!c.fp8_query) return choice;
  if (c.kv_cache_dtype.find("fp8") == std::string::npos) {
    problems.push_back("--fp8-query rounds queries to the type of a float8 cache; add --kv-cache-dtype fp8");
  } else if (c.layout.dcp == 1) {
    choice.reason = "--decode-context-parallel-size is 1, nothing is gathered";
  } else if (options.replicate_queries) {
    choice.reason = "enable_query_replication is on, nothing is gathered";
  } else if (c.reproducible) {
    choice.reason = "--reproducible: one rank alone would not round its queries";
  } else {
    active = true;
    choice.active = "on";
  }
  return choice;
}

}  // namespace

ContextMessages messages_of(const EngineConfig& c, const ModelConfig& m, DType compute) {
  const int64_t heads = m.n_heads / c.layout.tp, lse = heads * size_of(DType::kF32), lane = heads * size_of(compute);
  if (!m.mla) return {lane * m.head_dim, lane * m.head_dim + lse, lane * m.head_dim + lse};
  const int64_t latent = m.mla->kv_lora_rank;
  return {lane * (latent + m.mla->qk_rope), lane * latent + lse, lane * m.mla->v_head + lse};
}

ContextSetup resolve_context(const EngineConfig& c, const ModelConfig& m, DType compute, const ContextCosts& costs,
                             std::vector<std::string>& problems) {
  const Asked asked = read_config(c, problems);
  check_interleave(c, asked.interleave, problems);
  ContextSetup s;
  s.options.interleave = asked.interleave;
  s.options.exchange = asked.backend == "ag_rs" ? ContextOptions::Exchange::kGatherScatter : ContextOptions::Exchange::kAllToAll;
  if (c.layout.dcp == 1) {
    const char* reason = "--decode-context-parallel-size is 1";
    s.choices = {{"enable_query_replication", text_of(asked.replicate), "off", reason},
                 {"enable_project_before_merge", text_of(asked.project), "off", reason},
                 {"interleave_size", std::to_string(asked.interleave), std::to_string(asked.interleave), ""},
                 {"comm_backend", asked.backend, "none", reason},
                 choose_fp8_query(c, s.options, s.options.fp8_queries, problems)};
    return s;
  }
  s.to_measure = asked.replicate == Switch::kAuto || (asked.project == Switch::kAuto && m.mla && !c.reproducible);
  s.choices = {choose_replication(c, m, compute, costs, asked.replicate, s.options.replicate_queries),
               choose_projection(c, m, compute, costs, asked.project, s.options.project_before_merge),
               {"interleave_size", std::to_string(asked.interleave), std::to_string(asked.interleave), ""},
               {"comm_backend", asked.backend, asked.backend,
                c.reproducible && asked.backend == "ag_rs"
                    ? "--reproducible: partial sums are gathered whole, because sums on the wire have another order"
                    : ""}};
  s.choices.push_back(choose_fp8_query(c, s.options, s.options.fp8_queries, problems));
  return s;
}

RowRule row_rule(const EngineConfig& c, const ModelConfig& m, ContextSetup& context) {
  RowRule rule;
  rule.window_tokens = c.attn_prefill_chunk;
  ContextChoice choice{"attn-prefill-form", c.attn_prefill_form, "absorbed", ""};
  if (c.reproducible) {
    choice.reason = "--reproducible: every row takes the same form";
  } else if (!m.mla && c.layout.dcp == 1) {
    choice.reason = "grouped-query attention reads a whole cache where it lies";
  } else if (c.attn_prefill_form != "absorbed") {
    const bool always = c.attn_prefill_form == "expanded";
    rule.form = always ? RowRule::Form::kAlways : RowRule::Form::kAuto;
    choice.active = always ? "expanded" : "auto";
    if (m.mla) {
      // Multiplications per head. Expanding a cached latent; what a pair costs more where a query meets latents. A query
      // that is absorbed and projected costs as much as a new token that is expanded.
      const double r = static_cast<double>(m.mla->kv_lora_rank), expanded = static_cast<double>(m.mla->qk_nope + m.mla->v_head);
      rule.per_cached = r * expanded;
      rule.per_pair = 2 * r - expanded;
      choice.reason = rule.per_pair > 0 && !always ? fmt::format("behind a long context from {} new tokens on, where expanding its keys costs less than meeting latents",
                                                      static_cast<int64_t>(rule.per_cached / rule.per_pair) + 1) : "";
    } else {
      // Lanes that a rank receives: a cached token's key and value; a new token's query, unless it computes the group's,
      // and result for the group's heads.
      const double group_heads = static_cast<double>(m.n_heads) / c.layout.tp * c.layout.dcp;
      rule.per_cached = 2;
      rule.per_new = group_heads * (context.options.replicate_queries ? 1 : 2);
      if (!always) choice.reason = fmt::format("where a context of at most {} rows for each new token is gathered, instead of queries and results", rule.per_new / 2);
    }
  }
  context.options.from_rows = rule.form != RowRule::Form::kNever;
  context.choices.push_back(choice);
  return rule;
}

}  // namespace braid
