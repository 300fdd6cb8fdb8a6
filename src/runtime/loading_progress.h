// A weight source that draws a progress bar while the ranks of this process read from it.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/progress.h"
#include "model/checkpoint.h"

namespace braid {

class LoadingProgress final : public WeightSource {
 public:
  LoadingProgress(std::unique_ptr<WeightSource> files, std::span<const SkipRule> skipped, int n_ranks)
      : files_(std::move(files)) {
    progress_.emplace("loading", reads(*files_, skipped) * n_ranks, Progress::Unit::kCount);
  }
  void done() { progress_.reset(); }  // ends the bar's line

  bool has(const std::string& name) const override { return files_->has(name); }
  TensorInfo info(const std::string& name) const override { return files_->info(name); }
  int64_t read(const std::string& name, const Shape& shape, const Part& part) const override {
    const int64_t bytes = files_->read(name, shape, part);
    if (progress_) progress_->add(1);
    return bytes;
  }
  std::vector<StoredName> names() const override { return files_->names(); }

 private:
  // Every rank reads a piece of every tensor that is not skipped.
  static int64_t reads(const WeightSource& files, std::span<const SkipRule> skipped) {
    int64_t n = 0;
    for (const StoredName& stored : files.names()) n += !is_skipped(stored.name, skipped);
    return n;
  }

  std::unique_ptr<WeightSource> files_;
  mutable std::optional<Progress> progress_;
};

}  // namespace braid
