// The test body that every carrier must pass: all collectives over a group against a sequential reference, for element
// types and payload sizes from nothing to large. Used by the unit tests (threads) and by the program run under mpirun.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/comm.h"
#include "comm/tree_sum.h"

namespace braid::test {

inline const std::vector<int64_t> kCaseElements = {0, 1, 7, 1000, 20'003};

// Element i of rank r's data: a hash, so that every rank knows what every other holds.
inline uint64_t hash_of(int rank, int64_t i, uint64_t salt) {
  uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9u + salt * 0x94d049bb133111ebu;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

// Floats of very different sizes, so that the order of a sum shows in its bits.
inline float value_of(int rank, int64_t i, uint64_t salt) {
  const uint64_t h = hash_of(rank, i, salt);
  return (static_cast<float>(h >> 40) - 8388608.0f) * (h % 3 == 0 ? 1024.0f : 1.0f);
}

inline float tree_of(int lo, int hi, int64_t i, uint64_t salt) {
  if (hi - lo == 1) return value_of(lo, i, salt);
  const int mid = tree_split(lo, hi);
  return tree_of(lo, mid, i, salt) + tree_of(mid, hi, i, salt);
}

// Throws RuntimeFailure on the first difference. Every member of the group calls it with the same salt.
class CollectiveCases {
 public:
  CollectiveCases(
      Comm& comm, uint64_t salt, std::function<void()> delay = [] {})
      : comm_(comm), salt_(salt), delay_(std::move(delay)) {}

  void run() {
    for (int64_t n : kCaseElements) {
      sums(n);
      for (DType type : {DType::kF32, DType::kBF16, DType::kI64, DType::kU8})
        moves(type == DType::kF32 ? n : n / 3, type);
    }
    delay_();
    comm_.barrier("case_barrier");
  }

 private:
  void require(bool right, const char* what, int64_t n) const {
    if (!right) {
      throw RuntimeFailure(
          fmt::format("{} of {} elements: wrong on rank {} of {}", what, n, comm_.rank(), comm_.size()));
    }
  }
  int ranks() const { return comm_.size(); }

  void sums(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n)), in(static_cast<size_t>(n * ranks())), out(x.size());
    for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = value_of(comm_.rank(), i, salt_);
    delay_();
    comm_.all_reduce(Tensor(x.data(), DType::kF32, {n}), "case_reduce");
    check_sum(x, 0, "all_reduce");

    for (int64_t i = 0; i < n * ranks(); ++i) in[static_cast<size_t>(i)] = value_of(comm_.rank(), i, salt_);
    delay_();
    comm_.reduce_scatter(Tensor(out.data(), DType::kF32, {n}), Tensor(in.data(), DType::kF32, {ranks(), n}),
                         "case_scatter");
    check_sum(out, comm_.rank() * n, "reduce_scatter");
  }

  void check_sum(const std::vector<float>& x, int64_t first, const char* what) const {
    bool right = true;
    for (size_t i = 0; i < x.size() && right; ++i) {
      const float want = tree_of(0, ranks(), first + static_cast<int64_t>(i), salt_);
      right = std::memcmp(&x[i], &want, sizeof want) == 0;
    }
    require(right, what, static_cast<int64_t>(x.size()));
  }

  void moves(int64_t n, DType type) {
    const int64_t bytes = n * size_of(type);
    std::vector<uint8_t> in = bytes_of(comm_.rank(), bytes * ranks()), out(in.size());
    delay_();
    comm_.all_gather(Tensor(out.data(), type, {ranks(), n}), Tensor(in.data(), type, {n}), "case_gather");
    for (int r = 0; r < ranks(); ++r) check_part(out, r * bytes, r, 0, bytes, "all_gather");

    delay_();
    comm_.all_to_all(Tensor(out.data(), type, {ranks(), n}), Tensor(in.data(), type, {ranks(), n}), "case_to_all");
    for (int r = 0; r < ranks(); ++r) check_part(out, r * bytes, r, comm_.rank() * bytes, bytes, "all_to_all");

    const int root = static_cast<int>(n % ranks());
    delay_();
    comm_.broadcast(Tensor(in.data(), type, {n}), root, "case_broadcast");
    check_part(in, 0, root, 0, bytes, "broadcast");
    gather_uneven(n, type);
  }

  void gather_uneven(int64_t n, DType type) {
    constexpr int64_t kWidth = 3;
    std::vector<int64_t> counts;
    int64_t rows = 0;
    for (int r = 0; r < ranks(); ++r) {
      counts.push_back(n / kWidth * r / ranks());  // the first rank has none
      rows += counts.back();
    }
    const int64_t own = counts[static_cast<size_t>(comm_.rank())], row_bytes = kWidth * size_of(type);
    std::vector<uint8_t> in = bytes_of(comm_.rank(), own * row_bytes), out(static_cast<size_t>(rows * row_bytes));
    delay_();
    comm_.all_gatherv(Tensor(out.data(), type, {rows, kWidth}), Tensor(in.data(), type, {own, kWidth}), counts,
                      "case_gatherv");
    int64_t at = 0;
    for (int r = 0; r < ranks(); ++r) {
      const int64_t part = counts[static_cast<size_t>(r)] * row_bytes;
      check_part(out, at, r, 0, part, "all_gatherv");
      at += part;
    }
  }

  std::vector<uint8_t> bytes_of(int rank, int64_t n) const {
    std::vector<uint8_t> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = static_cast<uint8_t>(hash_of(rank, i, salt_));
    return x;
  }

  // out[at, at + bytes) must be rank r's bytes [from, from + bytes).
  void check_part(const std::vector<uint8_t>& out, int64_t at, int r, int64_t from, int64_t bytes,
                  const char* what) const {
    bool right = true;
    for (int64_t i = 0; i < bytes && right; ++i) {
      right = out[static_cast<size_t>(at + i)] == static_cast<uint8_t>(hash_of(r, from + i, salt_));
    }
    require(right, what, bytes);
  }

  Comm& comm_;
  uint64_t salt_;
  std::function<void()> delay_;
};

}  // namespace braid::test
