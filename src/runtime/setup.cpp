#include "runtime/setup.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/error.h"

namespace braid {
namespace {

bool is_folder(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

DType compute_type(const EngineConfig& c, const ModelConfig& m, std::vector<std::string>& problems) {
  const std::string& t = c.dtype;
  if (t == "float32" || t == "float") return DType::kF32;
  if (t == "bfloat16" || t == "bf16") return DType::kBF16;
  if (t == "half" || t == "float16") problems.push_back("--dtype " + t + " is not built; use float32 or bfloat16");
  return m.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

DType kv_type(const EngineConfig& c, DType compute) {
  if (c.kv_cache_dtype == "auto") return compute;
  if (c.kv_cache_dtype == "fp8" || c.kv_cache_dtype == "fp8_e4m3") return DType::kF8E4M3;
  return c.kv_cache_dtype == "float32" ? DType::kF32 : DType::kBF16;
}

// Eight-bit weights: what --quantization and a float8 checkpoint come to.
void choose_weights(RankSetup& s, std::vector<std::string>& problems) {
  const std::string& asked = s.config.quantization;
  s.weights_active = "none";
  if (s.on_gpus()) {
    if (asked == "fp8" || asked == "int8") {
      problems.push_back("--quantization " + asked + " is for CPU ranks so far; use auto (a float8 checkpoint is widened on a GPU), or --device cpu");
    }
    if (s.model.fp8) s.weights_reason = "GPUs multiply the checkpoint's float8 weights as " + std::string(name_of(s.compute));
    return;
  }
  if (asked == "int8" && s.model.fp8) {
    problems.push_back("--quantization int8 would round weights that are float8 in the checkpoint; use auto, or none to widen them");
  }
  const int64_t block = s.model.fp8_block_columns, most = WeightFormat::kMaxGroup;
  const bool fits = block <= most || block % most == 0;
  if (asked == "int8") {
    s.weights.rounded = {DType::kI8, WeightFormat::kMaxGroup};
  } else if (asked == "fp8" || (asked == "auto" && s.model.fp8)) {
    if (asked == "auto" && s.compute == DType::kF32) {
      s.weights_reason = "float8 weights are widened where activations are float32; fp8 keeps them";
      return;
    }
    if (s.model.fp8 && !fits) {
      s.weights_reason = fmt::format("float8 blocks of {} columns are widened; products keep up to 128, or multiples of 128", block);
      return;
    }
    s.weights.keep_float8 = true;
    // Weights that the checkpoint does not hold in float8, or of a configuration alone, are rounded to the same groups.
    const bool rounds = !s.model.fp8 || s.config.load_format == "dummy";
    if (rounds) s.weights.rounded = {DType::kF8E4M3, static_cast<int>(std::min<int64_t>(s.model.fp8 ? block : most, most))};
    if (s.model.fp8) s.weights_reason = "the checkpoint's";
  } else {
    if (s.model.fp8) s.weights_reason = "asked to widen the checkpoint's float8 weights";
    return;
  }
  s.weights_active = asked == "int8" ? name_of(DType::kI8) : name_of(DType::kF8E4M3);
}

int64_t parse_length(const std::string& text, const ModelConfig& m, std::vector<std::string>& problems) {
  if (text == "auto" || text == "-1") return m.max_position;
  int64_t n = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  if (error == std::errc() && (*stop == 'k' || *stop == 'K') && stop + 1 == end) {
    n *= *stop == 'K' ? 1024 : 1000;  // vLLM's spellings: 16k = 16,000, 16K = 16,384
  } else if (error != std::errc() || stop != end) {
    problems.push_back(fmt::format("--max-model-len '{}' is not a number of tokens; use auto, 16384, 16k or 16K", text));
    return m.max_position;
  }
  if (n < 1 || n > m.max_position) {
    problems.push_back(fmt::format("--max-model-len {} is outside 1 to {}, the model's max_position_embeddings", n, m.max_position));
    return m.max_position;
  }
  return n;
}

void check_scheduler(const EngineConfig& c, int64_t max_model_len, std::vector<std::string>& problems) {
  if (!c.chunked_prefill && c.max_num_batched_tokens < max_model_len) {
    problems.push_back(fmt::format("--no-enable-chunked-prefill needs --max-num-batched-tokens of at least --max-model-len {}, not {}",
                                   max_model_len, c.max_num_batched_tokens));
  }
  if (c.prefill_chunk > c.max_num_batched_tokens) {
    problems.push_back(fmt::format("--prefill-chunk {} is above --max-num-batched-tokens {}", c.prefill_chunk, c.max_num_batched_tokens));
  }
}

std::string device_of(const EngineConfig& c, std::vector<std::string>& problems) {
  if (c.device != "auto" && c.device != "cuda") return c.device;
  const bool usable = cuda_device_count() > 0;
  if (c.device == "auto") return usable ? "cuda" : "cpu";
  if (!usable) problems.push_back("--device cuda: no GPU is usable here (none visible, no driver, or a build without CUDA); use --device cpu");
  return "cuda";
}

}  // namespace

std::vector<int> graph_sizes_of(const std::string& text, int max_num_seqs, std::vector<std::string>& problems) {
  std::vector<int> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    int n = 0;
    const auto [stop, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || n > 4096) {
      problems.push_back(fmt::format("--cuda-graph-sizes '{}': use numbers from 1 to 4096, as in 1,2,4,8", text));
      return {};
    }
    sizes.push_back(n);
    at = stop;
    while (at != end && (*at == ',' || *at == ' ')) ++at;
  }
  if (sizes.size() <= 1) {
    const int most = sizes.empty() ? std::min(max_num_seqs, 256) : sizes[0];
    sizes.clear();
    for (int n = 1; n < most; n = n < 8 ? 2 * n : n + 8) sizes.push_back(n);
    sizes.push_back(most);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

ModelDims dims_of(const ModelConfig& m) {
  ModelDims d;
  d.model_type = m.model_type;
  d.heads = m.n_heads;
  d.kv_heads = m.mla ? 0 : m.n_kv_heads;
  const auto n_moe = std::count(m.moe_layer.begin(), m.moe_layer.begin() + m.n_layers, true);
  if (n_moe < m.n_layers) d.ffn = m.intermediate;
  if (n_moe > 0) d.moe_ffn = m.moe.intermediate, d.shared_ffn = m.moe.shared_intermediate;
  return d;
}

RankSetup resolve(const EngineConfig& c, std::vector<std::string>& problems) {
  RankSetup s;
  s.config = c;
  if (c.model.empty()) {
    problems.push_back("--model is missing: a Hugging Face folder, or a config.json with --load-format dummy");
    return s;
  }
  try {
    s.model = load_model_config(c.model, c.hf_overrides);
    check_supported(s.model);
  } catch (const Error& e) {  // without the model's dimensions nothing else can be judged
    problems.push_back(e.what());
    return s;
  }
  if (c.load_format != "dummy" && !is_folder(c.model)) {
    problems.push_back(fmt::format("--model {} is a file without weights; give a folder, or add --load-format dummy", c.model));
  }
  s.compute = compute_type(c, s.model, problems);
  s.kv_dtype = kv_type(c, s.compute);
  s.max_model_len = parse_length(c.max_model_len, s.model, problems);
  s.max_model_len_asked = c.max_model_len != "auto" && c.max_model_len != "-1";
  for (std::string& p : layout_problems(c.layout, dims_of(s.model), c.reproducible)) problems.push_back(std::move(p));
  s.context = resolve_context(c, s.model, s.compute, {}, problems);
  s.rows = row_rule(c, s.model, s.context);
  if (!c.kv_cache_memory.empty()) {
    try {
      parse_bytes(c.kv_cache_memory);
    } catch (const Error& e) {
      problems.push_back(std::string("--kv-cache-memory-bytes: ") + e.what());
    }
  }
  check_scheduler(c, s.max_model_len, problems);
  s.device = device_of(c, problems);
  choose_weights(s, problems);
  s.graph_sizes = graph_sizes_of(c.graph_sizes, c.max_num_seqs, problems);
  s.graph_reason = !s.on_gpus() ? "only GPUs record steps" : c.enforce_eager ? "--enforce-eager" : "";
  if (!s.graph_reason.empty()) s.graph_sizes.clear();
  const std::vector<std::string> levels = cpu_levels();
  if (s.device == "cpu" && c.cpu_level != "auto" && std::find(levels.begin(), levels.end(), c.cpu_level) == levels.end()) {
    problems.push_back(fmt::format("--cpu-level {} is beyond this machine, whose best is {}", c.cpu_level, levels.empty() ? "none" : levels.back()));
  }
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  s.threads = c.threads > 0 ? c.threads : std::max(1, cores / std::max(1, c.layout.world()));
  return s;
}

void settle_context(RankSetup& s, const ContextCosts& costs) {
  std::vector<std::string> problems;  // none: resolve() found none
  s.context = resolve_context(s.config, s.model, s.compute, costs, problems);
  s.rows = row_rule(s.config, s.model, s.context);
}

RankSetup resolve_or_throw(const EngineConfig& c) {
  std::vector<std::string> problems;
  RankSetup s = resolve(c, problems);
  if (!problems.empty()) throw Error("{}", fmt::join(problems, "\n"));
  return s;
}

}  // namespace braid
