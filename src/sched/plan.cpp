// The plan's wire form. A reader believes nothing: lengths are held against the bytes that are left before anything is
// allocated, ids against their ranges, and the whole against its end.
#include "sched/plan.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire form is the memory's");

constexpr uint32_t kMagic = 0x4e4c5042;  // "BPLN"
constexpr uint8_t kSample = 1, kAllLogits = 2, kPromptLogprobs = 4, kFlags = 7;
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr size_t kHeaderBytes = 4 + 8 + 4 + 4;
constexpr size_t kSequenceBytes = 8 + 8 + 1 + 4 + 4;

class Writer {
 public:
  explicit Writer(size_t n_bytes) { bytes_.resize(n_bytes); }
  template <typename T>
  void put(T value) {
    std::memcpy(bytes_.data() + at_, &value, sizeof value);
    at_ += sizeof value;
  }
  std::vector<std::byte> finish() {
    BRAID_CHECK(at_ == bytes_.size(), "{} of {} bytes", at_, bytes_.size());
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get(const char* what) {
    if (bytes_.size() < sizeof(T)) fail(fmt::format("ends inside {}", what));
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  // A count of items that take at least `item_bytes` each of what is left.
  size_t count(const char* what, size_t item_bytes) {
    const auto n = get<uint32_t>(what);
    if (n > bytes_.size() / item_bytes) fail(fmt::format("{} {} do not fit in {} bytes", n, what, bytes_.size()));
    return n;
  }
  int64_t id(int64_t value, const char* what) {
    if (value < 0) fail(fmt::format("{} {} is negative", what, value));
    return value;
  }
  void end() {
    if (!bytes_.empty()) fail(fmt::format("{} bytes follow its end", bytes_.size()));
  }
  [[noreturn]] static void fail(const std::string& why) { throw RuntimeFailure("malformed step plan: " + why); }

 private:
  std::span<const std::byte> bytes_;
};

PlannedSequence read_sequence(Reader& reader) {
  PlannedSequence s;
  s.id = RequestId(reader.id(reader.get<int64_t>("a request id"), "request id"));
  s.start = TokenPos(reader.id(reader.get<int64_t>("a start"), "start"));
  const auto flags = reader.get<uint8_t>("flags");
  if ((flags & ~kFlags) != 0) reader.fail(fmt::format("unknown flags {}", flags));
  s.sample = (flags & kSample) != 0;
  s.all_logits = (flags & kAllLogits) != 0;
  s.prompt_logprobs = (flags & kPromptLogprobs) != 0;
  s.tokens.resize(reader.count("tokens", sizeof(int32_t)));
  if (s.tokens.empty()) reader.fail("a sequence without tokens");
  if (s.start.value > kMaxId - static_cast<int64_t>(s.tokens.size())) {
    reader.fail(fmt::format("start {} is out of range", s.start.value));
  }
  for (int32_t& token : s.tokens) token = static_cast<int32_t>(reader.id(reader.get<int32_t>("tokens"), "token"));
  s.blocks.resize(reader.count("blocks", sizeof(int32_t)));
  if (s.blocks.empty()) reader.fail("a sequence without blocks");
  for (BlockId& block : s.blocks) block = BlockId(reader.id(reader.get<int32_t>("blocks"), "block"));
  return s;
}

}  // namespace

int64_t StepPlan::n_tokens() const {
  int64_t n = 0;
  for (const PlannedSequence& s : sequences) n += static_cast<int64_t>(s.tokens.size());
  return n;
}

std::vector<std::byte> serialize(const StepPlan& plan) {
  size_t n_bytes = kHeaderBytes + plan.forget.size() * sizeof(int64_t);
  for (const PlannedSequence& s : plan.sequences) {
    n_bytes += kSequenceBytes + (s.tokens.size() + s.blocks.size()) * sizeof(int32_t);
  }
  Writer out(n_bytes);
  out.put(kMagic);
  out.put(plan.step);
  out.put(static_cast<uint32_t>(plan.forget.size()));
  out.put(static_cast<uint32_t>(plan.sequences.size()));
  for (const RequestId id : plan.forget) out.put(id.value);
  for (const PlannedSequence& s : plan.sequences) {
    out.put(s.id.value);
    out.put(s.start.value);
    out.put(static_cast<uint8_t>((s.sample ? kSample : 0) | (s.all_logits ? kAllLogits : 0) |
                                 (s.prompt_logprobs ? kPromptLogprobs : 0)));
    out.put(static_cast<uint32_t>(s.tokens.size()));
    for (const int32_t token : s.tokens) out.put(token);
    out.put(static_cast<uint32_t>(s.blocks.size()));
    for (const BlockId block : s.blocks) out.put(static_cast<int32_t>(block.value));
  }
  return out.finish();
}

StepPlan deserialize_plan(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  if (reader.get<uint32_t>("its mark") != kMagic) reader.fail("it does not start with its mark");
  StepPlan plan;
  plan.step = reader.id(reader.get<int64_t>("the step"), "step");
  const size_t n_forget = reader.count("requests to forget", sizeof(int64_t));
  const size_t n_sequences = reader.count("sequences", kSequenceBytes);
  plan.forget.reserve(n_forget);
  for (size_t i = 0; i < n_forget; ++i) {
    plan.forget.push_back(RequestId(reader.id(reader.get<int64_t>("requests to forget"), "request id")));
  }
  plan.sequences.reserve(n_sequences);
  for (size_t i = 0; i < n_sequences; ++i) plan.sequences.push_back(read_sequence(reader));
  reader.end();
  return plan;
}

}  // namespace braid
