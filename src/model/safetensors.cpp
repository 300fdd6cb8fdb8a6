// Safetensors: the header's checks, the mapped file and the writer.
#include "model/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "base/json.h"

namespace braid {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;

struct StoredType {
  const char* name;
  int bits;
  std::optional<DType> dtype;
};
const StoredType kTypes[] = {
    {"F32", 32, DType::kF32},
    {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"U8", 8, DType::kU8},
    {"F64", 64, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"I8", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"BOOL", 8, {}},
    {"C64", 64, {}},
};

const StoredType* find_type(const std::string& name) {
  for (const StoredType& t : kTypes)
    if (name == t.name) return &t;
  return nullptr;
}

// nlohmann keeps the last of two equal keys; here the second is an error, as it would hide a tensor.
Json parse_header(std::string_view text, const std::string& file) {
  std::vector<std::unordered_set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get_ref<const std::string&>()).second)
      duplicate = value.get<std::string>();
    return true;
  };
  Json header;
  try {
    header = Json::parse(text, watch);
  } catch (const Json::exception& e) {
    throw Error("{}: the header is not valid JSON: {}", file, e.what());
  }
  if (!duplicate.empty()) throw Error("{}: the header has '{}' twice", file, duplicate);
  if (!header.is_object()) throw Error("{}: the header is not a JSON object", file);
  return header;
}

// A list of integers >= 0 that fit a size; nullopt otherwise.
std::optional<std::vector<int64_t>> sizes(const Json& list, size_t most) {
  if (!list.is_array() || list.size() > most) return {};
  std::vector<int64_t> result;
  for (const Json& n : list) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > uint64_t{1} << 62) return {};
    result.push_back(static_cast<int64_t>(n.get<uint64_t>()));
  }
  return result;
}

StoredTensor parse_tensor(const std::string& name, const Json& entry, const std::string& file, size_t data_begin) {
  const auto fail = [&](const std::string& why) -> Error { return Error("{}: tensor '{}' {}", file, name, why); };
  if (!entry.is_object()) throw fail("is not described by an object");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) throw fail(fmt::format("has no '{}'", key));
  if (!entry["dtype"].is_string()) throw fail("has a dtype that is not a string");
  StoredTensor t;
  t.name = name;
  t.type = entry["dtype"].get<std::string>();
  const StoredType* type = find_type(t.type);
  if (type == nullptr) throw fail(fmt::format("has the unknown dtype '{}'", t.type));
  t.dtype = type->dtype;
  const auto shape = sizes(entry["shape"], kMaxDims);
  if (!shape) throw fail(fmt::format("has a shape that is not a list of at most {} sizes", kMaxDims));
  t.shape = *shape;
  const auto offsets = sizes(entry["data_offsets"], 2);
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1])
    throw fail("has data_offsets that are not [begin, end] with begin <= end");
  unsigned __int128 bits = static_cast<unsigned>(type->bits);  // bounded below before each product
  for (const int64_t n : t.shape) {
    bits *= static_cast<uint64_t>(n);
    if (bits > (static_cast<unsigned __int128>(1) << 66))
      throw fail(fmt::format("of shape {} is impossibly large", shape_text(t.shape)));
  }
  const uint64_t expected = static_cast<uint64_t>((bits + 7) / 8),
                 given = static_cast<uint64_t>((*offsets)[1] - (*offsets)[0]);
  if (given != expected)
    throw fail(fmt::format("of shape {} and dtype {} needs {} bytes, but its data_offsets span {}", shape_text(t.shape),
                           t.type, expected, given));
  t.begin = data_begin + static_cast<size_t>((*offsets)[0]);
  t.bytes = static_cast<size_t>(given);
  return t;
}

// Sorted by place, the tensors must tile the data exactly.
void check_layout(const std::vector<StoredTensor>& tensors, const std::string& file, size_t data_begin,
                  size_t file_bytes) {
  size_t next = data_begin;
  const StoredTensor* before = nullptr;
  for (const StoredTensor& t : tensors) {
    if (t.begin + t.bytes > file_bytes)
      throw Error("{} is truncated: tensor '{}' ends at byte {}, the file at {}", file, t.name, t.begin + t.bytes,
                  file_bytes);
    if (t.begin < next) throw Error("{}: tensors '{}' and '{}' overlap", file, before->name, t.name);
    if (t.begin > next)
      throw Error("{}: {} bytes before tensor '{}' belong to no tensor", file, t.begin - next, t.name);
    next = t.begin + t.bytes;
    before = &t;
  }
  if (next != file_bytes)
    throw Error("{}: {} bytes after the last tensor belong to no tensor", file, file_bytes - next);
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < 8) throw Error("{} is truncated: {} bytes are too few for a safetensors file", name, file.size());
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (header_bytes > kMaxHeader)
    throw Error("{} is no safetensors file: its header would have {} bytes, more than {}", name, header_bytes,
                kMaxHeader);
  if (header_bytes > file.size() - 8)
    throw Error("{} is truncated: the header has {} bytes, the file {}", name, header_bytes, file.size());
  const size_t data_begin = 8 + static_cast<size_t>(header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, static_cast<size_t>(header_bytes));
  const Json header = parse_header(text, name);
  std::vector<StoredTensor> tensors;
  for (const auto& [key, entry] : header.items())
    if (key != "__metadata__") tensors.push_back(parse_tensor(key, entry, name, data_begin));
  // Empty tensors sort before the one that starts at the same byte.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.bytes) < std::tie(b.begin, b.bytes);
  });
  check_layout(tensors, name, data_begin, file.size());
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapped_(path) {
  tensors_ = parse_safetensors(mapped_.bytes(), path_);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const StoredTensor& SafetensorsFile::require(const std::string& name, DType dtype) const {
  const StoredTensor* t = find(name);
  if (t == nullptr) throw Error("{} has no tensor '{}'", path_, name);
  if (t->dtype != dtype)
    throw Error("{}: tensor '{}' is stored as {}, not as {}", path_, name, t->type, name_of(dtype));
  return *t;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  Json header = Json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    BRAID_CHECK(tensor.dense(), "{}", name);
    if (header.contains(name) || name == "__metadata__")
      throw Error("cannot write {}: tensor '{}' is there twice", path, name);
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const StoredType& t) { return t.dtype == tensor.dtype; });
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
    header[name] = {{"dtype", type->name}, {"shape", shape}, {"data_offsets", {offset, offset + tensor.n_bytes()}}};
    offset += tensor.n_bytes();
  }
  std::string text = to_string(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                             [](std::FILE* f) { return f ? std::fclose(f) : 0; });
  const auto put = [&](const void* data, size_t n) {
    if (!file || (n > 0 && std::fwrite(data, 1, n, file.get()) != n))
      throw Error("cannot write {}: {}", path, std::strerror(errno));
  };
  const uint64_t length = text.size();
  put(&length, sizeof length);  // hosts are little-endian, as the format is
  put(text.data(), text.size());
  for (const auto& [name, tensor] : tensors) put(tensor.data, static_cast<size_t>(tensor.n_bytes()));
  if (std::fflush(file.get()) != 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace braid
