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

// Replicating costs every step the reading of the other ranks' query weights; gathering costs it a small collective. The
// two figures are those of the rank threads of one host; they only decide "auto".
constexpr double kBytesPerMicrosecond = 10e3, kGatherMicroseconds = 20.0;

double replication_microseconds(const ModelConfig& m, const Layout& l, DType compute) {
  const double heads = static_cast<double>(m.n_heads) / l.tp * (l.dcp - 1);
  double per_head = static_cast<double>(m.head_dim * m.hidden);
  if (m.mla) {
    const int64_t in = m.mla->q_lora_rank > 0 ? m.mla->q_lora_rank : m.hidden;
    per_head = static_cast<double>((m.mla->qk_nope + m.mla->qk_rope) * in + m.mla->qk_nope * m.mla->kv_lora_rank);
  }
  return heads * per_head * size_of(compute) / kBytesPerMicrosecond;
}

ContextChoice choose_replication(const EngineConfig& c, const ModelConfig& m, DType compute, Switch asked, bool& active) {
  ContextChoice choice{"enable_query_replication", text_of(asked), "", ""};
  active = asked == Switch::kOn;
  if (asked == Switch::kAuto) {
    const double cost = replication_microseconds(m, c.layout, compute);
    active = cost < kGatherMicroseconds;
    choice.reason = fmt::format("the group's query weights cost about {:.1f} us a layer to read at 10 GB/s, gathering queries about {:.0f} us",
                                cost, kGatherMicroseconds);
  }
  choice.active = active ? "on" : "off";
  return choice;
}

ContextChoice choose_projection(const EngineConfig& c, const ModelConfig& m, Switch asked, bool& active) {
  ContextChoice choice{"enable_project_before_merge", text_of(asked), "", ""};
  active = false;
  if (!m.mla) {
    choice.reason = "grouped-query attention has no value up-projection";
  } else if (c.reproducible) {
    choice.reason = "--reproducible: in floating point the projection of a sum is not the sum of the projections";
  } else if (asked == Switch::kAuto) {
    active = m.mla->v_head < m.mla->kv_lora_rank;
    choice.reason = fmt::format("a head's message is {} wide projected and {} as it is", m.mla->v_head, m.mla->kv_lora_rank);
  } else {
    active = asked == Switch::kOn;
  }
  choice.active = active ? "on" : "off";
  return choice;
}

}  // namespace

ContextSetup resolve_context(const EngineConfig& c, const ModelConfig& m, DType compute, std::vector<std::string>& problems) {
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
                 {"comm_backend", asked.backend, "none", reason}};
    return s;
  }
  s.choices = {choose_replication(c, m, compute, asked.replicate, s.options.replicate_queries),
               choose_projection(c, m, asked.project, s.options.project_before_merge),
               {"interleave_size", std::to_string(asked.interleave), std::to_string(asked.interleave), ""},
               {"comm_backend", asked.backend, asked.backend,
                c.reproducible && asked.backend == "ag_rs"
                    ? "--reproducible: partial sums are gathered whole, because sums on the wire have another order"
                    : ""}};
  return s;
}

}  // namespace braid
