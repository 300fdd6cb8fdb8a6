// The pre-tokenizers of tokenizer.json: they cut normalized text into the words that the model sees one at a time.
// Words are handed on as they are found (each step of a Sequence depends on its own piece only), so a long text never
// becomes a list.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/function_ref.h"

namespace braid {

// A part of the text; at_start and start_bytes as in NormalText.
struct Piece {
  std::string_view text;
  bool at_start = false;
  size_t start_bytes = 0;

  Piece slice(size_t begin, size_t end) const {
    const bool still = at_start && begin < start_bytes;
    return {text.substr(begin, end - begin), still, still ? start_bytes - begin : 0};
  }
};

using PieceSink = FunctionRef<void(const Piece&)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Gives the non-empty pieces of a non-empty piece to `sink`, in order.
  virtual void split(const Piece& piece, PieceSink sink) const = 0;
  // Spells each byte as a character of the byte alphabet (the last thing that ByteLevel does).
  virtual bool spells_bytes() const { return false; }
};

class PreTokenizerChain {
 public:
  explicit PreTokenizerChain(const Json& config);  // null: no step at all. Throws Error.

  void split(const Piece& piece, PieceSink sink) const { run(0, piece, sink); }

  // Leaves out a spelling of bytes in the last step, for a model that takes raw bytes. False if there is none there.
  bool drop_last_byte_spelling();

 private:
  void run(size_t step, const Piece& piece, PieceSink sink) const;
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

}  // namespace braid
