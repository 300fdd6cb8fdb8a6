#include "apps/verify_compare.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "model/safetensors.h"

namespace braid {
namespace {

constexpr double kTieMargin = 1e-3;     // reference's two best closer than this: either may be chosen
constexpr double kLongShare = 0.9;      // of a long prompt's positions within the tolerance
constexpr double kMedianRms = 0.03;     // bfloat16

std::vector<float> row_of(const std::vector<float>& all, size_t row, size_t vocab) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * vocab);
  return {first, first + static_cast<std::ptrdiff_t>(vocab)};
}

std::vector<Expected> read_short(const SafetensorsFile& file, size_t vocab) {
  std::vector<Expected> prompts;
  for (int i = 0; file.find(fmt::format("input_ids_{}", i)); ++i) {
    Expected e;
    e.prompt = file.values<int32_t>(fmt::format("input_ids_{}", i));
    e.greedy = file.values<int32_t>(fmt::format("greedy_{}", i));
    const auto logits = file.values<float>(fmt::format("logits_{}", i));
    const auto greedy_logits = file.values<float>(fmt::format("greedy_logits_{}", i));
    const size_t n = e.prompt.size();
    if (logits.size() != n * vocab || greedy_logits.size() != e.greedy.size() * vocab) {
      throw Error("{}: logits_{} or greedy_logits_{} do not fit {} prompt tokens, {} greedy tokens and a vocabulary of {}", file.path(), i, i,
                  n, e.greedy.size(), vocab);
    }
    for (size_t p = 0; p < n; ++p) e.rows[static_cast<int64_t>(p)] = row_of(logits, p, vocab);
    // greedy_logits[j] chose greedy[j]: the row of position n - 1 + j.
    for (size_t j = 1; j < e.greedy.size(); ++j) e.rows[static_cast<int64_t>(n - 1 + j)] = row_of(greedy_logits, j, vocab);
    prompts.push_back(std::move(e));
  }
  return prompts;
}

std::vector<Expected> read_long(const SafetensorsFile& file, size_t vocab) {
  std::vector<Expected> prompts;
  for (int i = 0; file.find(fmt::format("input_ids_{}", i)); ++i) {
    Expected e;
    e.prompt = file.values<int32_t>(fmt::format("input_ids_{}", i));
    const auto positions = file.values<int32_t>(fmt::format("positions_{}", i));
    const auto logits = file.values<float>(fmt::format("logits_{}", i));
    if (logits.size() != positions.size() * vocab) throw Error("{}: logits_{} do not fit positions_{}", file.path(), i, i);
    for (size_t p = 0; p < positions.size(); ++p) e.rows[positions[p]] = row_of(logits, p, vocab);
    prompts.push_back(std::move(e));
  }
  return prompts;
}

double max_abs_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

double relative_rms(const std::vector<float>& got, const std::vector<float>& wanted) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - wanted[i];
    error += d * d;
    size += static_cast<double>(wanted[i]) * wanted[i];
  }
  return std::sqrt(error / size);
}

bool is_tie(std::vector<float> row) {
  std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
  return row[0] - row[1] < kTieMargin;
}

}  // namespace

std::string VerifyMode::name() const {
  switch (kind) {
    case kFull: return "full";
    case kChunk: return fmt::format("chunk:{}", chunk);
    case kCached: return "cached";
    case kBatched: return "batched";
    case kPreempted: return "preempted";
  }
  return "?";
}

std::optional<VerifyMode> parse_verify_mode(const std::string& text) {
  for (auto kind : {VerifyMode::kFull, VerifyMode::kCached, VerifyMode::kBatched, VerifyMode::kPreempted}) {
    if (VerifyMode{kind}.name() == text) return VerifyMode{kind};
  }
  if (text.rfind("chunk:", 0) != 0) return std::nullopt;
  VerifyMode mode{VerifyMode::kChunk};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + 6, end, mode.chunk);
  if (error != std::errc() || stop != end || mode.chunk < 1) return std::nullopt;
  return mode;
}

Verifier::Verifier(const RankSetup& setup, const std::string& reference_file, const std::string& long_file)
    : setup_(setup), tolerance_(setup.on_gpus() ? 1e-3 : 2e-4), narrow_(setup.compute == DType::kBF16) {
  const auto vocab = static_cast<size_t>(setup.model.vocab);
  short_ = read_short(SafetensorsFile(reference_file), vocab);
  if (short_.empty()) throw Error("{} holds no input_ids_0", reference_file);
  struct stat s {};
  if (::stat(long_file.c_str(), &s) == 0) long_ = read_long(SafetensorsFile(long_file), vocab);
}

RankSetup Verifier::setup_for(const VerifyMode& mode) const {
  RankSetup s = setup_;
  if (mode.kind == VerifyMode::kChunk) s.config.prefill_chunk = mode.chunk;
  if (mode.kind == VerifyMode::kPreempted) {
    // Every prompt fits beside the others, but hardly any of them can grow.
    int64_t blocks = 0;
    for (const Expected& e : short_) blocks += static_cast<int64_t>(e.prompt.size()) / s.virtual_block() + 1;
    s.config.num_kv_blocks = blocks;
    s.max_model_len_asked = false;
  }
  return s;
}

std::vector<Completion> Verifier::ask(EngineLoop& engine, const VerifyMode& mode, const std::vector<Expected>& prompts) {
  std::vector<Request> requests;
  for (const Expected& e : prompts) {
    Request r;
    r.prompt = e.prompt;
    r.all_logits = true;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = std::max(1, static_cast<int>(e.greedy.size()));
    requests.push_back(std::move(r));
  }
  std::vector<Completion> answers;
  Completions completions(engine);
  if (mode.kind == VerifyMode::kBatched || mode.kind == VerifyMode::kPreempted) {
    completions.submit_together(std::move(requests));
  } else {
    for (Request& r : requests) completions.wait(completions.submit(std::move(r)));
  }
  for (size_t i = 0; i < prompts.size(); ++i) answers.push_back(std::move(completions.wait(i)));
  return answers;
}

void Verifier::compare(const Expected& e, const Completion& c, bool is_long, ModeReport& report) const {
  PromptReport p;
  p.n_prompt = static_cast<int64_t>(e.prompt.size());
  const size_t index = report.prompts.size();
  if (c.finish != FinishReason::kLength) {
    report.failures.push_back(fmt::format("prompt {} ended with '{}': {}", index, name_of(c.finish), c.message));
  }
  // Beyond a near-tie that went the other way the two histories differ and rows can not be compared.
  int64_t last_comparable = p.n_prompt - 1 + static_cast<int64_t>(e.greedy.size());
  for (size_t j = 0; j < e.greedy.size(); ++j) {
    if (j < c.tokens.size() && c.tokens[j].token == e.greedy[j]) continue;
    last_comparable = p.n_prompt - 1 + static_cast<int64_t>(j);
    const auto row = e.rows.find(last_comparable);
    if (row == e.rows.end() || !is_tie(row->second) || j >= c.tokens.size()) {
      p.greedy_equal = false;
      report.failures.push_back(fmt::format("prompt {}: greedy token {} differs from the reference", index, j));
    }
    break;
  }
  for (const auto& [position, logits] : c.logits) {
    const auto row = e.rows.find(position);
    if (row == e.rows.end() || position > last_comparable) continue;
    const double d = max_abs_difference(logits, row->second);
    p.max_abs_dlogit = std::max(p.max_abs_dlogit, d);
    ++p.n_positions;
    p.n_within += d <= tolerance_;
  }
  if (p.n_positions == 0) report.failures.push_back(fmt::format("prompt {}: no position could be compared", index));
  const double share = is_long ? kLongShare : 1.0;
  if (static_cast<double>(p.n_within) < share * static_cast<double>(p.n_positions)) {
    report.failures.push_back(fmt::format("prompt {}: {} of {} positions within {}, largest |delta logit| {:.3g}", index, p.n_within,
                                          p.n_positions, tolerance_, p.max_abs_dlogit));
  }
  p.text = fmt::format("{} positions, {} within {}, max |delta logit| {:.3g}, greedy {}", p.n_positions, p.n_within, tolerance_,
                       p.max_abs_dlogit, p.greedy_equal ? "equal" : "DIFFERS");
  report.prompts.push_back(std::move(p));
}

void ExpertLog::see(const StepPlan& plan, const char* what, Tensor ids) {
  if (std::string_view(what) != "experts") return;
  int64_t row = 0;
  for (const PlannedSequence& s : plan.sequences) {
    for (size_t i = 0; i < s.tokens.size(); ++i, ++row) {
      Row& r = rows_[s.id.value][s.start.value + static_cast<int64_t>(i)];
      if (r.step != plan.step) r.ids.clear();
      r.step = plan.step;
      r.ids.insert(r.ids.end(), ids.row<int32_t>(row), ids.row<int32_t>(row) + ids.dim(1));
    }
  }
}

std::map<int64_t, std::vector<int32_t>> ExpertLog::of(RequestId id) const {
  std::map<int64_t, std::vector<int32_t>> all;
  if (const auto it = rows_.find(id.value); it != rows_.end()) {
    for (const auto& [position, row] : it->second) all[position] = row.ids;
  }
  return all;
}

bool Verifier::record_float32() {
  recorded_ = true;  // on every process: all must start the same runs in the same order
  RankSetup wide = setup_;
  wide.compute = wide.kv_dtype = DType::kF32;
  ExpertLog log;
  const auto engine = start_engine(wide, [&log](const StepPlan& plan, const char* what, Tensor ids) { log.see(plan, what, ids); });
  if (!engine) {
    // The tokens are process 0's to know, but the prompts' lengths size the pool of mode preempted, everywhere alike.
    for (Expected& e : short_) e.prompt.resize(e.prompt.size() + std::max<size_t>(1, e.greedy.size()) - 1);
    return false;
  }
  const std::vector<Completion> answers = ask(*engine, VerifyMode{}, short_);
  for (size_t i = 0; i < short_.size(); ++i) {
    Expected& e = short_[i];
    e.rows.clear();
    for (const auto& [position, logits] : answers[i].logits) e.rows[position] = logits;
    e.experts = log.of(answers[i].id);
    for (size_t j = 0; j + 1 < answers[i].tokens.size(); ++j) e.prompt.push_back(answers[i].tokens[j].token);
  }
  return true;
}

void Verifier::compare_narrow(const Expected& e, const Completion& c, const std::map<int64_t, std::vector<int32_t>>& experts,
                              ModeReport& report) const {
  PromptReport p;
  p.n_prompt = static_cast<int64_t>(e.prompt.size());
  const size_t index = report.prompts.size();
  if (c.finish != FinishReason::kLength) {
    report.failures.push_back(fmt::format("prompt {} ended with '{}': {}", index, name_of(c.finish), c.message));
  }
  std::vector<double> relative;
  for (const auto& [position, logits] : c.logits) {
    const auto row = e.rows.find(position);
    if (row == e.rows.end() || position >= p.n_prompt) continue;
    const auto choice = experts.find(position), reference = e.experts.find(position);
    const bool same = (choice == experts.end()) == (reference == e.experts.end()) &&
                      (choice == experts.end() || choice->second == reference->second);
    ++p.n_positions;
    p.n_flipped += !same;
    p.max_abs_dlogit = std::max(p.max_abs_dlogit, max_abs_difference(logits, row->second));
    if (same) relative.push_back(relative_rms(logits, row->second));
  }
  p.n_within = static_cast<int64_t>(relative.size());
  if (relative.empty()) {
    report.failures.push_back(fmt::format("prompt {}: no row chose the float32 run's experts", index));
  } else {
    std::nth_element(relative.begin(), relative.begin() + static_cast<std::ptrdiff_t>(relative.size() / 2), relative.end());
    p.median_relative_rms = relative[relative.size() / 2];
  }
  if (!(p.median_relative_rms <= kMedianRms)) {
    report.failures.push_back(fmt::format("prompt {}: median relative RMS {:.3g} is above {}", index, p.median_relative_rms, kMedianRms));
  }
  p.text = fmt::format("{} positions against float32, {} with other experts, median relative RMS of the rest {:.3g}", p.n_positions,
                       p.n_flipped, p.median_relative_rms);
  report.prompts.push_back(std::move(p));
}

// A mode that was not active proves nothing.
void Verifier::check_active(const VerifyMode& mode, const EngineStats& stats, ModeReport& report) const {
  report.counters = {{"steps", stats.steps}, {"multi_sequence_steps", stats.multi_sequence_steps}, {"cached_tokens", stats.cached_tokens},
                     {"preemptions", stats.preemptions}, {"prompt_tokens", stats.prompt_tokens}, {"generated_tokens", stats.generated_tokens}};
  auto need = [&](bool active, const char* what) {
    if (!active) report.failures.push_back(fmt::format("the mode was not exercised: {}", what));
  };
  if (mode.kind == VerifyMode::kCached) need(stats.cached_tokens > 0, "no prefix was found in the cache");
  if (mode.kind == VerifyMode::kBatched) need(stats.multi_sequence_steps > 0, "no step held two sequences");
  if (mode.kind == VerifyMode::kPreempted) need(stats.preemptions > 0, "nothing was preempted");
}

std::optional<ModeReport> Verifier::run(const VerifyMode& mode) {
  if (narrow_ && !recorded_ && !record_float32()) driver_ = false;
  ExpertLog log;
  const auto engine = start_engine(setup_for(mode), [&log](const StepPlan& plan, const char* what, Tensor ids) { log.see(plan, what, ids); });
  if (!engine) {
    driver_ = false;
    return std::nullopt;
  }
  ModeReport report;
  report.mode = mode.name();
  if (mode.kind == VerifyMode::kCached) ask(*engine, mode, short_);  // fills the cache
  const std::vector<Completion> answers = ask(*engine, mode, short_);
  for (size_t i = 0; i < short_.size(); ++i) {
    narrow_ ? compare_narrow(short_[i], answers[i], log.of(answers[i].id), report) : compare(short_[i], answers[i], false, report);
    keep_for_dump(fmt::format("{}_{}", report.mode, i), answers[i]);
  }
  if (mode.kind == VerifyMode::kFull && !narrow_) {
    const std::vector<Completion> long_answers = ask(*engine, mode, long_);
    for (size_t i = 0; i < long_.size(); ++i) compare(long_[i], long_answers[i], true, report);
  }
  check_active(mode, engine->stats(), report);
  report.first_rank = engine->world().first_local();
  report.ranks = engine->executor().counters();
  print_counters(*engine);
  return report;
}

void Verifier::keep_for_dump(const std::string& name, const Completion& c) {
  Dumped d;
  d.name = name;
  std::map<int64_t, const std::vector<float>*> rows;  // a recomputed position counts once, the last time
  for (const auto& [position, logits] : c.logits) rows[position] = &logits;
  for (const auto& [position, logits] : rows) d.logits.insert(d.logits.end(), logits->begin(), logits->end());
  d.rows = static_cast<int64_t>(rows.size());
  for (const TokenOutput& t : c.tokens) d.greedy.push_back(t.token);
  dumped_.push_back(std::move(d));
}

void Verifier::dump(const std::string& file) {
  std::vector<NamedTensor> tensors;
  for (Dumped& d : dumped_) {
    tensors.push_back({"logits_" + d.name, Tensor(d.logits.data(), DType::kF32, {d.rows, setup_.model.vocab})});
    tensors.push_back({"greedy_" + d.name, Tensor(d.greedy.data(), DType::kI32, {static_cast<int64_t>(d.greedy.size())})});
  }
  write_safetensors(file, tensors);
}

}  // namespace braid
