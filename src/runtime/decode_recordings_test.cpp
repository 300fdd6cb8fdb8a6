#include "runtime/decode_recordings.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "ops/reference/reference_backend.h"
#include "runtime/setup.h"

namespace braid {
namespace {

// Stands for a device that records: what was asked is done when it is replayed.
class FakeRecorder final : public ReferenceBackend {
 public:
  struct Step final : Recording {
    std::function<void()> work;
    int64_t n_nodes() const override { return 1; }
  };
  bool can_record() const override { return true; }
  void begin_recording() override { recording = true; }
  std::unique_ptr<Recording> end_recording() override {
    recording = false;
    auto step = std::make_unique<Step>();
    step->work = asked;
    return step;
  }
  void replay(const Recording& r) override { static_cast<const Step&>(r).work(); }

  bool recording = false;
  std::function<void()> asked;
};

// "Logits" from which every integer of a sequence can be read back.
void describe(const BatchMeta& b, Tensor logits) {
  for (int s = 0; s < b.n_seqs; ++s) {
    const int64_t row = b.q_start.as<int32_t>()[s];
    float* out = logits.row<float>(s);
    out[0] = static_cast<float>(b.token_ids.as<int32_t>()[row]);
    out[1] = static_cast<float>(b.positions.as<int32_t>()[row]);
    out[2] = static_cast<float>(b.slots.as<int32_t>()[row]);
    out[3] = static_cast<float>(b.kv_len.as<int32_t>()[s]);
    out[4] = static_cast<float>(b.logit_rows.as<int32_t>()[s]);
    out[5] = static_cast<float>(b.block_table.row<int32_t>(s)[out[3] > 16 ? 1 : 0]);
  }
}

StepPlan decode_plan(int n) {
  StepPlan plan;
  for (int i = 0; i < n; ++i) {
    PlannedSequence s;
    s.id = RequestId(i + 1);
    s.start = TokenPos(10 + 3 * i);  // the third sequence and later have two blocks
    s.tokens = {100 + i};
    s.blocks = {BlockId(2 * i + 1), BlockId(2 * i + 2)};
    s.sample = true;
    plan.sequences.push_back(s);
  }
  return plan;
}

TEST(DecodeRecordings, ReplaysHaveTheStepsOwnIntegers) {
  FakeRecorder backend;
  const SequenceShard shard{1, 1, 16, 0};
  DecodeRecordings recordings(backend, shard, {1, 2, 4, 8}, 64);
  auto forward = [&](const BatchMeta& b) {
    Tensor logits = backend.alloc(MemoryKind::kWorkspace, DType::kF32, {b.n_seqs, 6});
    if (backend.recording) {
      backend.asked = [b, logits] { describe(b, logits); };
    } else {
      describe(b, logits);
    }
    return logits;
  };
  int64_t calls = 0;
  recordings.record(forward, [&] { return CollectiveCounts{{"attn_out", {++calls, 10 * calls}}}; });
  for (int n : {1, 3, 4, 5, 8, 2}) {
    const StepPlan plan = decode_plan(n);
    const int size = recordings.size_for(plan);
    EXPECT_EQ(size, n == 3 ? 4 : n == 5 ? 8 : n);
    RankStep step;
    lower(plan, shard, step, size);
    const Tensor logits = recordings.replay(size, step, n);
    ASSERT_EQ(logits.dim(0), n);
    for (int i = 0; i < n; ++i) {
      const PlannedSequence& s = plan.sequences[static_cast<size_t>(i)];
      const float* got = logits.row<float>(i);
      const int position = static_cast<int>(s.start.value), block = position / 16;
      EXPECT_EQ(got[0], static_cast<float>(100 + i));
      EXPECT_EQ(got[1], static_cast<float>(position));
      EXPECT_EQ(got[2], static_cast<float>(s.blocks[static_cast<size_t>(block)].value * 16 + position % 16));
      EXPECT_EQ(got[3], static_cast<float>(position + 1));
      EXPECT_EQ(got[4], static_cast<float>(i));
      EXPECT_EQ(got[5], static_cast<float>(s.blocks[static_cast<size_t>(position + 1 > 16 ? 1 : 0)].value));
    }
  }
  EXPECT_EQ(recordings.replays(), 6);
  // Each recording called the collective once; four recordings were not runs, six replays were.
  EXPECT_EQ(recordings.replayed().at("attn_out").calls, 6 - 4);
}

// Tables are sent by difference: whatever came before, a step finds its own.
RC_GTEST_PROP(DecodeRecordings, TablesAreTheStepsOwn, ()) {
  constexpr int kMost = 12, kColumns = 6;
  FakeRecorder backend;
  const SequenceShard shard{1, 1, 4, 0};
  DecodeRecordings recordings(backend, shard, {kMost}, 4 * kColumns);
  std::vector<int32_t> seen;
  auto forward = [&](const BatchMeta& b) {
    Tensor logits = backend.alloc(MemoryKind::kWorkspace, DType::kF32, {b.n_seqs, 1});
    if (backend.recording) {
      backend.asked = [b, &seen, &shard] {
        seen.clear();
        for (int s = 0; s < b.n_seqs; ++s) {
          const int64_t columns = shard.table_columns(b.kv_len.as<int32_t>()[s]);
          seen.insert(seen.end(), b.block_table.row<int32_t>(s), b.block_table.row<int32_t>(s) + columns);
        }
      };
    }
    return logits;
  };
  recordings.record(forward, [] { return CollectiveCounts{}; });
  for (int step = 0; step < 20; ++step) {
    StepPlan plan;
    std::vector<int32_t> wanted;
    const int n = *rc::gen::inRange(1, kMost + 1);
    for (int i = 0; i < n; ++i) {
      PlannedSequence s;
      s.id = RequestId(i + 1);
      s.start = TokenPos(*rc::gen::inRange(0, 4 * kColumns));
      s.tokens = {1};
      s.sample = true;
      for (int64_t c = 0; c < shard.table_columns(s.start.value + 1); ++c) {
        s.blocks.push_back(BlockId(*rc::gen::inRange(0, 3)));  // few ids, so that old entries are often right by luck
        wanted.push_back(static_cast<int32_t>(s.blocks.back().value));
      }
      plan.sequences.push_back(s);
    }
    wanted.insert(wanted.end(), static_cast<size_t>(kMost - n), 0);
    RankStep lowered;
    lower(plan, shard, lowered, kMost);
    recordings.replay(kMost, lowered, n);
    RC_ASSERT(seen == wanted);
  }
}

TEST(DecodeRecordings, OnlyPlainDecodeStepsAreReplayed) {
  FakeRecorder backend;
  const DecodeRecordings recordings(backend, SequenceShard{1, 1, 16, 0}, {2, 4}, 64);
  EXPECT_EQ(recordings.size_for(decode_plan(1)), 2);
  EXPECT_EQ(recordings.size_for(decode_plan(5)), 0);  // beyond the largest
  EXPECT_EQ(recordings.size_for(StepPlan{}), 0);
  StepPlan plan = decode_plan(2);
  plan.sequences[1].tokens = {1, 2};
  EXPECT_EQ(recordings.size_for(plan), 0);
  plan = decode_plan(2);
  plan.sequences[0].all_logits = true;
  EXPECT_EQ(recordings.size_for(plan), 0);
  plan = decode_plan(2);
  plan.sequences[0].sample = false;
  EXPECT_EQ(recordings.size_for(plan), 0);
}

TEST(GraphSizes, OneNumberOrAList) {
  std::vector<std::string> problems;
  EXPECT_EQ(graph_sizes_of("", 20, problems), (std::vector<int>{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(graph_sizes_of("", 1, problems), (std::vector<int>{1}));
  EXPECT_EQ(graph_sizes_of("24", 256, problems), (std::vector<int>{1, 2, 4, 8, 16, 24}));
  EXPECT_EQ(graph_sizes_of("8,1, 3,3", 256, problems), (std::vector<int>{1, 3, 8}));
  EXPECT_EQ(graph_sizes_of("", 1000, problems).back(), 256);
  EXPECT_TRUE(problems.empty());
  for (const char* wrong : {"0", "1,x", "-3", "5000"}) {
    problems.clear();
    EXPECT_TRUE(graph_sizes_of(wrong, 256, problems).empty());
    EXPECT_EQ(problems.size(), 1u) << wrong;
  }
}

}  // namespace
}  // namespace braid
