// The prompts of a benchmark: random tokens, random with shared prefixes, or from a file. Every draw comes from one
// private generator, so that a seed gives the same prompts everywhere, whatever else draws random numbers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/option_table.h"

namespace braid {

class Tokenizer;

struct BenchPrompt {
  std::string text;             // empty where there is no tokenizer
  std::vector<int32_t> tokens;  // of the text
  int n_output = 0;             // tokens to ask for
  bool operator==(const BenchPrompt&) const = default;
};

struct DatasetOptions {
  std::string name = "random";  // random, prefix_repetition, sharegpt, custom
  std::string path;
  int num_prompts = 1000;
  // random: lengths are even between LEN * ratio and LEN; the prefix comes before the prompt and is the same for all
  int input_len = 1024, output_len = 128, prefix_len = 0;
  double range_ratio = 1;
  // prefix_repetition: num_prefixes prefixes, each shared by as many prompts
  int repeated_prefix_len = 256, suffix_len = 256, num_prefixes = 10, repeated_output_len = 128;
  int sharegpt_output_len = 0;  // 0: as long as the answer in the file
  int custom_output_len = 256;  // where a line does not say
};

// The rows of all fields, under vLLM's names.
void add_dataset_options(OptionTable& table, DatasetOptions& options);
// What is impossible, each with the nearest legal value.
void check_dataset(const DatasetOptions& options, bool has_tokenizer, std::vector<std::string>& problems);

// With a tokenizer, random prompts are text whose tokens are these, special tokens left out. Without, `vocab_size` says
// which ids there are. Throws Error for a file that cannot be used.
std::vector<BenchPrompt> make_dataset(const DatasetOptions& options, uint64_t seed, const Tokenizer* tokenizer,
                                      int vocab_size);

}  // namespace braid
