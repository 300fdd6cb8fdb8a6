// The decoders of tokenizer.json as a stream: tokens go in one at a time, text comes out as soon as no later token can
// change it. Decoding a whole list is the same stream fed to its end, so both give the same text.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/function_ref.h"

namespace braid {

// A token, or a part of one: some decoders fuse all tokens into one, whose parts are passed on as they come.
struct Fragment {
  std::string_view text;
  bool begins = true, ends = true;
};

using FragmentSink = FunctionRef<void(const Fragment&)>;

class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void push(const Fragment& token, FragmentSink out) = 0;
  virtual void flush(FragmentSink /*out*/) {}
  virtual std::unique_ptr<DecodeStage> fresh() const = 0;  // the same stage at the start of a stream
};

class Decoder;

// The state of one stream. Valid UTF-8 comes out if tokens are valid UTF-8.
class DecodeStream {
 public:
  void push(std::string_view token, std::string& out);
  void flush(std::string& out);

 private:
  friend class Decoder;
  void run(size_t stage, const Fragment& token, std::string& out);
  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

class Decoder {
 public:
  explicit Decoder(const Json& config);  // null: tokens joined by blanks. Throws Error.
  DecodeStream stream() const;
  bool spells_bytes() const { return spells_bytes_; }        // tokens are in the byte alphabet
  bool has_byte_tokens() const { return has_byte_tokens_; }  // "<0x41>" is one byte

 private:
  void add(const Json& config, int depth);
  void add_stage(std::unique_ptr<DecodeStage> stage, bool takes_parts, bool fuses);

  std::vector<std::unique_ptr<const DecodeStage>> stages_;
  bool fused_ = false;  // the last stage gives one token in parts
  bool spells_bytes_ = false, has_byte_tokens_ = false;
};

}  // namespace braid
