// One rank's reading, and the account of what was read by all.
#include "model/checkpoint.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace braid {

DType stored_dtype(DType file, DType compute) {
  BRAID_CHECK(compute == DType::kF32 || compute == DType::kBF16, "compute type {}", name_of(compute));
  switch (file) {
    case DType::kBF16:
      return DType::kBF16;
    case DType::kF32:
    case DType::kF16:
    case DType::kF8E4M3:
      return compute;
    default:
      throw Error("weights can not be stored as {}; use float32, bfloat16, float16 or float8_e4m3", name_of(file));
  }
}

void CheckpointReader::read(const std::string& name, const Shape& shape, std::span<const Part> parts) {
  if (!consumed_.insert(name).second) throw Error("tensor '{}' is read twice by one rank", name);
  if (source_->info(name).dtype == DType::kF8E4M3) consumed_.insert(name + "_scale_inv");
  for (Part part : parts) {
    part.maker = maker_;
    bytes_read_ += source_->read(name, shape, part);
  }
}

void CheckpointReader::read(const std::string& name, const Shape& shape, const Slice& slice, Tensor out) {
  const Part part{slice, out};
  read(name, shape, {&part, 1});
}

namespace {

const SkipRule* covering(std::span<const SkipRule> rules, const std::string& name) {
  for (const SkipRule& rule : rules)
    if (name.starts_with(rule.prefix) && name.ends_with(rule.suffix)) return &rule;
  return nullptr;
}

}  // namespace

bool is_skipped(const std::string& name, std::span<const SkipRule> rules) { return covering(rules, name) != nullptr; }

std::vector<SkippedTensor> finish_loading(const WeightSource& source, std::span<const CheckpointReader* const> readers,
                                          std::span<const SkipRule> rules) {
  constexpr size_t kListed = 10;
  std::vector<SkippedTensor> skipped;
  std::vector<std::string> unread;
  size_t n_unread = 0;
  for (const auto& [name, file] : source.names()) {
    bool read = false;
    for (const CheckpointReader* reader : readers) read = read || reader->consumed().contains(name);
    if (read) continue;
    if (const SkipRule* rule = covering(rules, name)) {
      skipped.push_back({name, rule->reason});
    } else if (++n_unread <= kListed) {
      unread.push_back(fmt::format("'{}' in {}", name, file));
    }
  }
  if (n_unread > 0)
    throw Error("the checkpoint holds {} tensor{} that the model does not use: {}{}", n_unread,
                n_unread == 1 ? "" : "s", fmt::join(unread, ", "), n_unread > kListed ? ", ..." : "");
  return skipped;
}

}  // namespace braid
