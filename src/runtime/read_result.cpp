// From a step's logits to its result: rows that were only asked for are copied out, the others are sampled.
#include <algorithm>
#include <cmath>

#include "runtime/executor.h"

namespace braid {
namespace {

// Natural-log probability of `token`, and the n best, under one row of logits.
TokenOutput score(std::span<const float> row, int32_t token, int n_top) {
  const float largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float x : row) sum += std::exp(static_cast<double>(x - largest));
  const double log_sum = std::log(sum) + largest;
  TokenOutput out{.token = token, .logprob = static_cast<float>(row[static_cast<size_t>(token)] - log_sum), .top = {}};
  const auto n = std::min<size_t>(static_cast<size_t>(n_top), row.size());
  std::vector<int32_t> ids(row.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(), [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (size_t i = 0; i < n; ++i) out.top.emplace_back(ids[i], static_cast<float>(row[static_cast<size_t>(ids[i])] - log_sum));
  return out;
}

// Row i of a planned sequence predicts the prompt token behind it.
std::vector<TokenOutput> prompt_scores(const PlannedSequence& s, const SamplingRow& row, const std::vector<float>& logits, size_t vocab) {
  std::vector<TokenOutput> scores;
  for (size_t i = 0; i < s.tokens.size(); ++i) {
    const auto next = static_cast<size_t>(s.start.value) + i + 1;
    if (next >= row.prompt.size()) break;
    scores.push_back(score(std::span(logits).subspan(i * vocab, vocab), row.prompt[next], row.n_top_logprobs));
  }
  return scores;
}

}  // namespace

StepResult Executor::read_result(const StepPlan& plan, std::span<const SamplingRow> sampling, Tensor logits) {
  Backend& backend = runners_[0]->backend();
  const std::vector<int>& first_row = runners_[0]->step().logit_row_start;
  const auto vocab = static_cast<size_t>(setup_.model.vocab);
  StepResult result;
  result.sequences.resize(plan.sequences.size());
  std::vector<int32_t> rows;
  std::vector<SamplingRow> sampled;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& s = plan.sequences[i];
    SequenceResult& r = result.sequences[i];
    if (s.every_row()) {
      auto values = std::make_shared<std::vector<float>>(s.tokens.size() * vocab);
      backend.download(values->data(), logits.rows(first_row[i], first_row[i + 1]));
      r.bad = std::any_of(values->begin(), values->end(), [](float x) { return std::isnan(x); });
      if (s.prompt_logprobs && !r.bad) r.prompt_logprobs = prompt_scores(s, sampling[i], *values, vocab);
      if (s.all_logits) r.logits = std::move(values);
    }
    if (s.sample) {
      rows.push_back(first_row[i + 1] - 1);
      sampled.push_back(sampling[i]);
    }
  }
  if (rows.empty()) return result;

  Tensor chosen = logits;
  if (static_cast<int64_t>(rows.size()) != logits.dim(0)) {
    Tensor index = backend.scratch(DType::kI32, {static_cast<int64_t>(rows.size())});
    backend.upload(index, rows.data());
    chosen = backend.scratch(DType::kF32, {index.dim(0), logits.dim(1)});
    backend.gather_rows(chosen, logits, index);
  }
  std::vector<SampleResult> out(rows.size());
  backend.sample(out, chosen, sampled);
  auto next = out.begin();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    if (!plan.sequences[i].sample) continue;
    SequenceResult& r = result.sequences[i];
    r.bad = r.bad || next->bad;
    r.token = {.token = next->token, .logprob = next->logprob, .top = std::move(next->top)};
    ++next;
  }
  return result;
}

}  // namespace braid
