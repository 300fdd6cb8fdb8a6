// Weights from safetensors files: which file holds a name, and the conversions from every stored type.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "model/slice.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

template <typename T>
T load(const std::byte* p) {  // a file's elements may lie at any address
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Narrow types by look-up: without special instructions the conversion costs ten times as much.
template <typename In>
const float* decoded() {
  static const std::vector<float> table = [] {
    std::vector<float> values(size_t{1} << (8 * sizeof(In)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(In{static_cast<decltype(In::bits)>(i)});
    return values;
  }();
  return table.data();
}

template <typename In, typename Out>
void convert(const std::byte* in, Out* out, int64_t n) {
  [[maybe_unused]] const float* table = nullptr;
  if constexpr (std::is_same_v<In, Half>) table = decoded<Half>();
  for (int64_t i = 0; i < n; ++i) {
    const In x = load<In>(in + static_cast<size_t>(i) * sizeof(In));
    if constexpr (std::is_same_v<In, Out>) {
      out[i] = x;
    } else if constexpr (std::is_same_v<In, Half>) {
      store(out + i, table[x.bits]);
    } else {
      store(out + i, to_float(x));
    }
  }
}

// One block's share of a row.
template <typename Out>
void convert_scaled(const std::byte* in, Out* out, int64_t n, float factor) {
  const float* table = decoded<Float8E4M3>();
  for (int64_t i = 0; i < n; ++i) store(out + i, table[static_cast<uint8_t>(in[i])] * factor);
}

int64_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

struct Entry {
  const SafetensorsFile* file;
  const StoredTensor* tensor;
};

class FileSource : public WeightSource {
 public:
  FileSource(const std::string& path, int64_t block_rows, int64_t block_columns)
      : path_(path), block_rows_(block_rows), block_columns_(block_columns) {
    if (!fs::exists(path)) throw Error("cannot read {}: there is no such file or folder", path);
    const fs::path single = fs::path(path) / "model.safetensors",
                   index = fs::path(path) / "model.safetensors.index.json";
    if (!fs::is_directory(path)) {
      add_file(listing_ = path);
    } else if (fs::exists(single)) {
      add_file(listing_ = single.string());
    } else if (fs::exists(index)) {
      add_shards(listing_ = index.string());
    } else {
      throw Error("{} holds neither model.safetensors nor model.safetensors.index.json", path);
    }
  }

  bool has(const std::string& name) const override { return entries_.contains(name); }

  TensorInfo info(const std::string& name) const override {
    const Entry& e = find(name);
    return {readable(e), e.tensor->shape, e.file->path()};
  }

  int64_t read(const std::string& name, const Shape& shape, const Part& part) const override {
    const Entry& e = find(name);
    const DType dtype = readable(e);
    check_shape(e, shape);
    const SliceWalk walk(name, shape, part);
    if (dtype == DType::kF8E4M3) return read_fp8(e, walk, shape, part);
    if (part.out.dtype == DType::kF32) {
      read_plain<float>(e, dtype, walk, part.out);
    } else {
      read_plain<BFloat16>(e, dtype, walk, part.out);
    }
    return walk.n_elements() * size_of(dtype);
  }

  std::vector<StoredName> names() const override {
    std::vector<StoredName> result;
    for (const auto& [name, e] : entries_) result.push_back({name, e.file->path()});
    return result;
  }

 private:
  void add_file(const std::string& file) {
    files_.push_back(std::make_unique<SafetensorsFile>(file));
    const SafetensorsFile& f = *files_.back();
    for (const StoredTensor& t : f.tensors()) {
      const auto [it, fresh] = entries_.emplace(t.name, Entry{&f, &t});
      if (!fresh) throw Error("tensor '{}' is in both {} and {}", t.name, it->second.file->path(), file);
    }
  }

  void add_shards(const std::string& index) {
    const Json json = read_json_file(index);
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    if (map == json.end() || !map->is_object()) throw Error("{} has no 'weight_map' object", index);
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& [name, shard] : map->items()) {
      if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos)
        throw Error("{}: '{}' is in {}, which is not a plain file name", index, name, to_string(shard));
      shards[shard.get<std::string>()].push_back(name);
    }
    for (const auto& [shard, names] : shards) {
      const std::string file = (fs::path(path_) / shard).string();
      if (!fs::exists(file)) throw Error("{} is missing; {} expects it", file, index);
      add_file(file);
      for (const std::string& name : names)
        if (files_.back()->find(name) == nullptr)
          throw Error("{} has no tensor '{}'; {} expects it there", file, name, index);
    }
  }

  const Entry& find(const std::string& name) const {
    const auto it = entries_.find(name);
    if (it != entries_.end()) return it->second;
    constexpr size_t kListed = 3;
    std::vector<std::pair<int64_t, std::string>> near;
    for (const auto& [other, e] : entries_) near.emplace_back(edit_distance(name, other), other);
    const size_t n = std::min(kListed, near.size());
    std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(n), near.end());
    std::vector<std::string> listed;
    for (size_t i = 0; i < n; ++i) listed.push_back("'" + near[i].second + "'");
    throw Error("{} has no tensor '{}'; nearest are {}", listing_, name, fmt::join(listed, ", "));
  }

  static DType readable(const Entry& e) {
    const auto dtype = e.tensor->dtype;
    if (!dtype || *dtype == DType::kI32 || *dtype == DType::kI64 || *dtype == DType::kU8)
      throw Error("{}: tensor '{}' is stored as {}; weights must be F32, BF16, F16 or F8_E4M3", e.file->path(),
                  e.tensor->name, e.tensor->type);
    return *dtype;
  }

  static void check_shape(const Entry& e, const Shape& shape) {
    if (e.tensor->shape != shape)
      throw Error("{}: tensor '{}' has shape {}, the model needs {}", e.file->path(), e.tensor->name,
                  shape_text(e.tensor->shape), shape_text(shape));
  }

  template <typename Out>
  static void read_plain(const Entry& e, DType dtype, const SliceWalk& walk, const Tensor& out) {
    const std::byte* data = e.file->bytes(*e.tensor).data();
    const int64_t n = walk.row_size(), size = size_of(dtype);
    walk.rows([&](int64_t first, int64_t to) {
      const std::byte* in = data + first * size;
      Out* row = out.as<Out>() + to;
      switch (dtype) {
        case DType::kF32:
          convert<float>(in, row, n);
          break;
        case DType::kBF16:
          convert<BFloat16>(in, row, n);
          break;
        default:
          convert<Half>(in, row, n);
          break;  // readable() lets nothing else through
      }
    });
  }

  // The factors of a float8 tensor, one per block.
  struct BlockScales {
    const std::byte* data;
    DType type;
    int64_t rows, columns;                // of the tensor
    int64_t scale_rows, scale_columns;    // of its factors
    int64_t block_rows, block_columns;
    // Of the row that begins at element `first` of the tensor (or goes on from there).
    const std::byte* row(int64_t first) const {
      const int64_t row = first / columns % rows, lead = first / columns / rows;
      return data + (lead * scale_rows + row / block_rows) * scale_columns * size_of(type);
    }
    float of(const std::byte* row, int64_t block) const {
      return type == DType::kF32 ? load<float>(row + block * 4) : to_float(load<BFloat16>(row + block * 2));
    }
  };

  BlockScales scales_of_tensor(const Entry& e, const Shape& shape) const {
    const std::string& name = e.tensor->name;
    if (shape.size() < 2)
      throw Error("{}: tensor '{}' is F8_E4M3 of shape {}; only matrices have block scales", e.file->path(), name,
                  shape_text(shape));
    const auto it = entries_.find(name + "_scale_inv");
    if (it == entries_.end())
      throw Error("{}: tensor '{}' is F8_E4M3, but there is no '{}_scale_inv'", e.file->path(), name, name);
    const Entry& scale = it->second;
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    const int64_t scale_rows = (rows + block_rows_ - 1) / block_rows_;
    const int64_t scale_columns = (columns + block_columns_ - 1) / block_columns_;
    Shape scale_shape = shape;
    scale_shape[shape.size() - 2] = scale_rows;
    scale_shape.back() = scale_columns;
    check_shape(scale, scale_shape);
    const DType type = readable(scale);
    if (type != DType::kF32 && type != DType::kBF16)
      throw Error("{}: tensor '{}' is stored as {}; scales must be F32 or BF16", scale.file->path(), scale.tensor->name,
                  scale.tensor->type);
    return {scale.file->bytes(*scale.tensor).data(), type, rows, columns, scale_rows, scale_columns, block_rows_, block_columns_};
  }

  int64_t read_fp8(const Entry& e, const SliceWalk& walk, const Shape& shape, const Part& part) const {
    const BlockScales scales = scales_of_tensor(e, shape);
    const std::byte* data = e.file->bytes(*e.tensor).data();
    if (part.out.dtype == DType::kF8E4M3) {
      copy_fp8(data, scales, walk, part);
    } else {
      widen_fp8(data, scales, walk, part.out);
    }
    return walk.n_elements() + scales_of(walk.slice(), block_rows_, block_columns_) * size_of(scales.type);
  }

  // value = fp8 * scale of its block, rounded once to float32 (and from there to bfloat16, as transformers does).
  static void widen_fp8(const std::byte* data, const BlockScales& scales, const SliceWalk& walk, const Tensor& out) {
    const int64_t n = walk.row_size();
    walk.rows([&](int64_t first, int64_t to) {
      const int64_t column = first % scales.columns;
      const std::byte* scale_row = scales.row(first);
      for (int64_t i = 0; i < n;) {
        const int64_t block = (column + i) / scales.block_columns;
        const int64_t stop = std::min(n, (block + 1) * scales.block_columns - column);
        const float factor = scales.of(scale_row, block);
        if (out.dtype == DType::kF32) {
          convert_scaled(data + first + i, out.as<float>() + to + i, stop - i, factor);
        } else {
          convert_scaled(data + first + i, out.as<BFloat16>() + to + i, stop - i, factor);
        }
        i = stop;
      }
    });
  }

  static void copy_fp8(const std::byte* data, const BlockScales& scales, const SliceWalk& walk, const Part& part) {
    const int64_t slice = walk.row_size() / part.k_slices, groups = part.kept.groups(slice);
    BRAID_CHECK(part.scales.dim(1) == part.k_slices * groups && groups_fit_blocks(walk.slice().back(), part.k_slices, part.kept.group, scales.block_columns));
    walk.rows([&](int64_t first, int64_t to) {
      std::memcpy(static_cast<std::byte*>(part.out.data) + to, data + first, static_cast<size_t>(walk.row_size()));
      float* factors = part.scales.row<float>(to / part.out.stride[0]);
      const std::byte* scale_row = scales.row(first);
      for (int64_t g = 0; g < part.k_slices * groups; ++g) {
        const int64_t column = first % scales.columns + g / groups * slice + g % groups * part.kept.group;
        factors[g] = scales.of(scale_row, column / scales.block_columns);
      }
    });
  }

  std::string path_;
  std::string listing_;  // the file that says which tensors there are
  int64_t block_rows_, block_columns_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace

std::unique_ptr<WeightSource> open_checkpoint(const std::string& path, int64_t fp8_block_rows,
                                              int64_t fp8_block_columns) {
  return std::make_unique<FileSource>(path, fp8_block_rows, fp8_block_columns);
}

}  // namespace braid
