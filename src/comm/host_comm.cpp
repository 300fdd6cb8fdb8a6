// Tensors to buffers.
#include "comm/host_comm.h"

#include <cstring>

#include "base/error.h"

namespace braid {
namespace {

std::byte* bytes_of(const Tensor& t) { return static_cast<std::byte*>(t.data); }

void check_pair(const Tensor& out, const Tensor& in, int64_t out_elements, int64_t in_elements, const char* name) {
  BRAID_CHECK(out.dense() && in.dense(), "{}: not dense", name);
  BRAID_CHECK(out.dtype == in.dtype, "{}: {} from {}", name, name_of(out.dtype), name_of(in.dtype));
  BRAID_CHECK(out_elements == in_elements, "{}: {} elements where {} are needed", name, out_elements, in_elements);
}

}  // namespace

void HostComm::run(Collective kind, const char* name, int64_t agreed_bytes, int64_t contributed, const Buffers& buffers,
                   uint64_t detail) {
  count(name, size() > 1 ? contributed : 0);
  if (size() == 1) {
    const bool moves = kind != Collective::kBarrier && buffers.out != buffers.in && agreed_bytes > 0;
    if (moves) copy_own(buffers.out, buffers.in, agreed_bytes);
    return;
  }
  carry({kind, name, group_->step_of(rank()), ++sequence_, agreed_bytes, detail}, buffers);
}

void HostComm::agree_on(Collective kind, const char* name, int64_t bytes) {
  count(name, bytes);
  Buffers buffers;
  buffers.elsewhere = true;
  group_->run(rank(), {kind, name, group_->step_of(rank()), ++sequence_, bytes, 0}, buffers);
}

void HostComm::copy_own(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void HostComm::all_reduce(Tensor x, const char* name) {
  BRAID_CHECK(x.dtype == DType::kF32 && x.dense(), "{}: all_reduce of {}", name, name_of(x.dtype));
  const int64_t bytes = x.n_bytes();
  run(Collective::kAllReduce, name, bytes, bytes, {bytes_of(x), bytes_of(x), bytes, {}, 0, false});
}

void HostComm::all_gather(Tensor out, Tensor in, const char* name) {
  check_pair(out, in, out.n_elements(), in.n_elements() * size(), name);
  const int64_t bytes = in.n_bytes();
  run(Collective::kAllGather, name, bytes, bytes, {bytes_of(in), bytes_of(out), bytes, {}, 0, false});
}

void HostComm::all_gatherv(Tensor out, Tensor in, std::span<const int64_t> counts, const char* name) {
  BRAID_CHECK(static_cast<int>(counts.size()) == size(), "{}: {} counts, {} ranks", name, counts.size(), size());
  int64_t rows = 0;
  uint64_t hash = 14695981039346656037u;  // FNV-1a over the counts
  for (int64_t n : counts) {
    BRAID_CHECK(n >= 0, "{}: a count of {}", name, n);
    rows += n;
    hash = (hash ^ static_cast<uint64_t>(n)) * 1099511628211u;
  }
  const int64_t own_rows = counts[static_cast<size_t>(rank())];
  const int64_t width = rows > 0 ? out.n_elements() / rows : 0;  // elements of a row
  check_pair(out, in, out.n_elements(), rows * width, name);
  BRAID_CHECK(in.n_elements() == own_rows * width, "{}: {} elements, {} rows of {}", name, in.n_elements(), own_rows,
              width);
  const Buffers buffers{bytes_of(in), bytes_of(out), in.n_bytes(), counts, width * size_of(in.dtype), false};
  run(Collective::kAllGatherV, name, rows * buffers.row_bytes, in.n_bytes(), buffers, hash);
}

void HostComm::reduce_scatter(Tensor out, Tensor in, const char* name) {
  BRAID_CHECK(in.dtype == DType::kF32, "{}: reduce_scatter of {}", name, name_of(in.dtype));
  check_pair(out, in, out.n_elements() * size(), in.n_elements(), name);
  run(Collective::kReduceScatter, name, in.n_bytes(), in.n_bytes(),
      {bytes_of(in), bytes_of(out), out.n_bytes(), {}, 0, false});
}

void HostComm::all_to_all(Tensor out, Tensor in, const char* name) {
  check_pair(out, in, out.n_elements(), in.n_elements(), name);
  BRAID_CHECK(in.n_bytes() % size() == 0 && (in.n_bytes() == 0 || size() == 1 || in.data != out.data),
              "{}: all_to_all of {} bytes over {} ranks, in place or uneven", name, in.n_bytes(), size());
  const Buffers buffers{bytes_of(in), bytes_of(out), in.n_bytes() / size(), {}, 0, false};
  run(Collective::kAllToAll, name, in.n_bytes(), in.n_bytes(), buffers);
}

void HostComm::broadcast(Tensor x, int root, const char* name) {
  BRAID_CHECK(x.dense() && 0 <= root && root < size(), "{}: broadcast from {} of {}", name, root, size());
  const int64_t bytes = x.n_bytes();
  run(Collective::kBroadcast, name, bytes, rank() == root ? bytes : 0, {bytes_of(x), bytes_of(x), bytes, {}, 0, false},
      static_cast<uint64_t>(root));
}

void HostComm::barrier(const char* name) { run(Collective::kBarrier, name, 0, 0, {}); }

}  // namespace braid
