// Inputs of conformance cases: tensors, batches, caches.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/conformance_cases.h"
#include "ops/element.h"

namespace braid {

Tensor Inputs::zeros(DType t, std::initializer_list<int64_t> shape) {
  Tensor x = backend_.alloc(MemoryKind::kWorkspace, t, shape);
  backend_.fill_zero(x);
  return x;
}

void Inputs::put(const Tensor& x, const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<size_t>(x.n_bytes()) + 1);
  Tensor host = x;
  host.data = bytes.data();
  for (size_t i = 0; i < values.size(); ++i) store_element(host, static_cast<int64_t>(i), values[i]);
  backend_.upload(x, bytes.data());
}

Tensor Inputs::normals(DType t, std::initializer_list<int64_t> shape, float scale, float mean) {
  Tensor x = backend_.alloc(MemoryKind::kWorkspace, t, shape);
  std::vector<float> values(static_cast<size_t>(x.n_elements()));
  for (float& v : values) v = mean + scale * normal();
  put(x, values);
  return x;
}

WeightMatrix Inputs::weight(const WeightFormat& f, std::initializer_list<int64_t> shape, float scale) {
  return {normals(f.scaled() ? DType::kF32 : f.type, shape, scale), f};
}

Tensor Inputs::choices(int64_t rows, int k, int of) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<int32_t> all(static_cast<size_t>(of));
    for (size_t j = 0; j < all.size(); ++j) all[j] = static_cast<int32_t>(j);
    for (size_t j = 0; j < static_cast<size_t>(k); ++j) std::swap(all[j], all[j + static_cast<size_t>(uniform(of - static_cast<int>(j)))]);
    std::sort(all.begin(), all.begin() + k);
    ids.insert(ids.end(), all.begin(), all.begin() + k);
  }
  return ints(ids).view({rows, k});
}

Tensor Inputs::ints(const std::vector<int32_t>& values) {
  Tensor x = backend_.alloc(MemoryKind::kWorkspace, DType::kI32, {static_cast<int64_t>(values.size())});
  backend_.upload(x, values.data());
  return x;
}

Tensor Inputs::poisoned(DType t, std::initializer_list<int64_t> shape) {
  Tensor x = backend_.alloc(MemoryKind::kWorkspace, t, shape);
  if (t == DType::kI32) {
    const std::vector<int32_t> values(static_cast<size_t>(x.n_elements()) + 1, -77);
    backend_.upload(x, values.data());
  } else {
    put(x, std::vector<float>(static_cast<size_t>(x.n_elements()), std::nanf("")));
  }
  return x;
}

BatchMeta make_batch(Inputs& in, const std::vector<SequenceLengths>& sequences, const SequenceShard& shard,
                     int* n_blocks) {
  std::vector<int32_t> positions, q_start{0}, kv_len, slots, tokens;
  int64_t columns = 1;
  int total = 1;  // block 0 stays unused, so that a padded table entry is never a right answer by luck
  for (const SequenceLengths& s : sequences) {
    columns = std::max(columns, shard.table_columns(s.context + s.fresh));
    total += static_cast<int>(shard.table_columns(s.context + s.fresh));
  }
  std::vector<int32_t> ids(static_cast<size_t>(total - 1));
  std::iota(ids.begin(), ids.end(), 1);
  for (size_t i = ids.size(); i > 1; --i)
    std::swap(ids[i - 1], ids[static_cast<size_t>(in.uniform(static_cast<int>(i)))]);

  BatchMeta b;
  std::vector<int32_t> table(sequences.size() * static_cast<size_t>(columns), 0);
  size_t next = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int length = sequences[s].context + sequences[s].fresh;
    int32_t* row = table.data() + s * static_cast<size_t>(columns);
    for (int64_t c = 0; c < shard.table_columns(length); ++c) row[c] = ids[next++];
    for (int g = sequences[s].context; g < length; ++g) {
      const TokenPos position(g);
      positions.push_back(g);
      tokens.push_back(in.uniform(1000));
      const BlockId block(row[shard.table_column(position)]);
      slots.push_back(shard.owns(position) ? static_cast<int32_t>(shard.slot(block, shard.local(position)).value) : -1);
    }
    q_start.push_back(static_cast<int32_t>(positions.size()));
    kv_len.push_back(length);
    b.max_q_len = std::max(b.max_q_len, sequences[s].fresh);
    b.max_kv_len = std::max(b.max_kv_len, length);
  }
  b.n_tokens = static_cast<int>(positions.size());
  b.n_seqs = static_cast<int>(sequences.size());
  b.token_ids = in.ints(tokens);
  b.positions = in.ints(positions);
  b.q_start = in.ints(q_start);
  b.kv_len = in.ints(kv_len);
  b.slots = in.ints(slots);
  b.block_table = in.ints(table);
  b.block_table.rank = 2;
  b.block_table.shape = {static_cast<int64_t>(sequences.size()), columns};
  b.block_table.stride = {columns, 1};
  b.shard = shard;
  *n_blocks = total;
  return b;
}

KvCache make_cache(Inputs& in, DType t, const BatchMeta& batch, int n_blocks, int n_heads, int dk, int dv, bool latent,
                   float scale) {
  const int64_t n_slots = int64_t{n_blocks} * batch.shard.block_size;
  const int64_t width = int64_t{n_heads} * (latent ? dk : dk + dv);
  std::vector<float> rows(static_cast<size_t>(n_slots * width), std::nanf(""));
  std::vector<int32_t> kv_len(static_cast<size_t>(batch.n_seqs));
  std::vector<int32_t> table(static_cast<size_t>(batch.block_table.n_elements()));
  in.backend().download(kv_len.data(), batch.kv_len);
  in.backend().download(table.data(), batch.block_table);
  for (int s = 0; s < batch.n_seqs; ++s) {
    std::mt19937 random(static_cast<uint32_t>(1000 + s));
    std::normal_distribution<float> normal;
    for (int g = 0; g < kv_len[static_cast<size_t>(s)]; ++g) {
      const TokenPos position(g);
      std::vector<float> row(static_cast<size_t>(width));
      for (float& v : row) v = normal(random);
      if (!batch.shard.owns(position)) continue;
      const auto column = static_cast<size_t>(s * batch.block_table.dim(1) + batch.shard.table_column(position));
      const int64_t slot = batch.shard.slot(BlockId(table[column]), batch.shard.local(position)).value;
      std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(slot * width));
    }
  }
  KvCache cache;
  cache.scale = scale;
  Tensor all = in.backend().alloc(MemoryKind::kCache, t, {n_slots, n_heads, width / n_heads});
  in.put(all, rows);
  cache.k = all.columns(0, dk);
  cache.v = latent ? all.columns(0, dv) : all.columns(dk, dk + dv);
  return cache;
}

}  // namespace braid
