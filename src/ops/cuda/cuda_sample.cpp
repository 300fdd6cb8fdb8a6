// Sampling: what the host knows of each row goes up in three pieces, tokens and log-probabilities come back in one.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/sample.h"

namespace braid {
namespace {

// One entry per token whose logit changes.
void add_edits(std::vector<cuda::LogitEdit>& edits, const SamplingRow& row, int64_t vocabulary) {
  std::unordered_map<int32_t, cuda::LogitEdit> by_id;
  auto at = [&](int32_t id) -> cuda::LogitEdit* { return id >= 0 && id < vocabulary ? &by_id[id] : nullptr; };
  for (const int32_t id : row.banned) {
    if (auto* e = at(id)) e->banned = 1;
  }
  for (const auto& [id, bias] : row.logit_bias) {
    if (auto* e = at(id)) e->bias += bias;
  }
  if (row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f) {
    for (const int32_t id : row.prompt) {
      if (auto* e = at(id)) e->count = std::max(e->count, 0);
    }
    for (const int32_t id : row.generated) {
      if (auto* e = at(id)) e->count = std::max(e->count, 0) + 1;
    }
  }
  for (auto& [id, e] : by_id) {
    e.id = id;
    edits.push_back(e);
  }
}

// `host`: tokens, log-probabilities, ids and log-probabilities of the best `top` of each row.
void read_samples(std::span<SampleResult> out, const int32_t* host, int64_t top, std::span<const int64_t> wanted) {
  const auto n = static_cast<int64_t>(out.size());
  auto float_at = [&](int64_t i) { return std::bit_cast<float>(host[i]); };
  for (int64_t r = 0; r < n; ++r) {
    SampleResult& result = out[static_cast<size_t>(r)];
    result = {};
    result.token = host[r];
    result.bad = result.token < 0;
    if (result.bad) continue;
    result.logprob = float_at(n + r);
    for (int64_t i = 0; i < wanted[static_cast<size_t>(r)]; ++i) {
      result.top.emplace_back(host[2 * n + r * top + i], float_at(2 * n + n * top + r * top + i));
    }
    std::sort(result.top.begin(), result.top.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
  }
}

}  // namespace

void CudaBackend::sample_later(std::span<SampleResult> out, Tensor logits, std::span<const SamplingRow> rows) {
  BRAID_CHECK(out.size() == rows.size() && logits.dim(0) == static_cast<int64_t>(rows.size()));
  if (rows.empty()) return;
  const int64_t n = logits.dim(0), vocabulary = logits.dim(1);
  std::vector<cuda::SampleRow> host_rows;
  std::vector<cuda::LogitEdit> edits;
  std::vector<uint32_t> masks;
  int most_top = 0;
  for (const SamplingRow& r : rows) {
    const auto first_edit = static_cast<int32_t>(edits.size());
    add_edits(edits, r, vocabulary);
    BRAID_CHECK(r.allowed.empty() || static_cast<int64_t>(r.allowed.size()) * 32 >= vocabulary);
    host_rows.push_back({r.temperature, r.top_p, r.min_p, r.presence_penalty, r.frequency_penalty, r.repetition_penalty,
                         r.top_k, r.n_top_logprobs, first_edit, static_cast<int32_t>(edits.size()) - first_edit,
                         r.allowed.empty() ? -1 : static_cast<int64_t>(masks.size()),
                         uniform_draw(r.seed, r.position)});
    masks.insert(masks.end(), r.allowed.begin(), r.allowed.end());
    most_top = std::max(most_top, r.n_top_logprobs);
  }
  const int64_t top = std::min<int64_t>(most_top, vocabulary);

  const ScratchScope temporary(*this);
  auto send = [&](const auto& values) {
    const Tensor t = scratch(DType::kU8, {static_cast<int64_t>(values.size() * sizeof(values[0]))});
    upload(t, values.data());
    return t.data;
  };
  const Tensor results = scratch(DType::kI32, {2 * n * (1 + top)});  // tokens, logprobs, top ids, top logprobs
  auto* const ints = results.as<int32_t>();
  auto* const floats = reinterpret_cast<float*>(ints);
  cuda::sample(stream_, {logits.as<float>(), logits.stride[0], static_cast<int32_t>(n), static_cast<int32_t>(vocabulary),
                         static_cast<const cuda::SampleRow*>(send(host_rows)),
                         static_cast<cuda::LogitEdit*>(send(edits)), static_cast<const uint32_t*>(send(masks)),
                         static_cast<uint64_t*>(scratch(DType::kI64, {n, vocabulary}).data),
                         static_cast<cuda::RowPart*>(scratch(DType::kU8, {n * cuda::kRowParts * static_cast<int64_t>(sizeof(cuda::RowPart))}).data), ints, floats + n,
                         ints + 2 * n, floats + 2 * n + n * top, static_cast<int32_t>(top)});

  auto* const host = static_cast<int32_t*>(staged(results.n_bytes()));
  CUDA_CHECK(cudaMemcpyAsync(host, ints, static_cast<size_t>(results.n_bytes()), cudaMemcpyDeviceToHost, stream_));
  std::vector<int64_t> wanted;
  for (const SamplingRow& r : rows) wanted.push_back(std::min<int64_t>(r.n_top_logprobs, vocabulary));
  when_waited_.push_back([out, host, top, wanted = std::move(wanted)] { read_samples(out, host, top, wanted); });
}

}  // namespace braid
