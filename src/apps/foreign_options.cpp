#include "apps/foreign_options.h"

#include <algorithm>
#include <iterator>

namespace braid {
namespace {

constexpr auto kNone = ForeignValue::kNone;
constexpr auto kOne = ForeignValue::kOne;
constexpr auto kOptional = ForeignValue::kOptional;

constexpr const char* kNotCompiled = "nothing is compiled at run time";
constexpr const char* kLogged = "--log-level decides what is logged";
constexpr const char* kSpeculation = "speculative decoding is not in this version";
constexpr const char* kOverlap = "two-batch overlap is not in this version";
constexpr const char* kQuantised = "weights are rounded by --quantization fp8 or int8, to scales per 128 inputs of an output";

const ForeignOption kOptions[] = {
    {"async-scheduling", kNone, false, "planning has one mode"},
    {"compilation-config", kOne, false, kNotCompiled},
    {"level", kOne, false, kNotCompiled},
    {"swap-space", kOne, false, "a preempted request is computed again"},
    {"disable-log-requests", kNone, false, kLogged},
    {"no-enable-log-requests", kNone, false, kLogged},
    {"disable-log-stats", kNone, false, kLogged},
    {"disable-uvicorn-access-log", kNone, false, kLogged},
    {"uvicorn-log-level", kOne, false, kLogged},
    {"disable-frontend-multiprocessing", kNone, false, "the server is one process"},
    {"distributed-executor-backend", kOne, false, "ranks are threads, or processes under mpirun"},
    {"disable-custom-all-reduce", kNone, false, "there is one all-reduce per carrier"},
    {"enable-auto-tool-choice", kNone, false, "tool calls are parsed wherever the template has tools"},
    {"tokenizer-mode", kOne, false, "tokenizer.json is always used"},
    {"method", kOne, true, kSpeculation},
    {"num-speculative-tokens", kOne, true, kSpeculation},
    {"draft-model", kOne, true, kSpeculation},
    {"speculative-config", kOne, true, kSpeculation},
    {"enable-tbo", kOptional, true, kOverlap},
    {"enable-dbo", kNone, true, kOverlap},
    {"enable-dp-attention", kNone, true, "attention per data-parallel rank is not in this version"},
    {"enable-expert-parallel", kNone, true, "expert parallel is not in this version"},
    {"pipeline-parallel-size", kOne, true, "pipeline parallel is not in this version"},
    {"sequence-parallel-size", kOne, true, "sequence parallel is not in this version"},
    {"online-quant-config", kOne, true, kQuantised},
    {"enable-lora", kNone, true, "LoRA adapters are not in this version"},
    {"kv-transfer-config", kOne, true, "moving KV between servers is not in this version"},
};

}  // namespace

const ForeignOption* foreign_option(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kOptions), std::end(kOptions), [&](const ForeignOption& o) { return name == o.name; });
  return found == std::end(kOptions) ? nullptr : found;
}

}  // namespace braid
