#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "text/utf8.h"

namespace braid {

struct RegexCode {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string shown_as;
  RegexCode() = default;
  RegexCode(const RegexCode&) = delete;
  RegexCode& operator=(const RegexCode&) = delete;
  ~RegexCode() { pcre2_code_free(code); }
};

namespace {

// What PCRE2 writes to during a match; one set per thread, so that a Regex can be shared.
struct MatchScratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 * 1024, 16 * 1024 * 1024, nullptr);
  MatchScratch() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 64 * 1024);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

MatchScratch& scratch() {
  thread_local MatchScratch per_thread;
  return per_thread;
}

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      if (c == '\0') {
        out += "\\x00";
        continue;
      }
      out += '\\';
    }
    out += c;
  }
  return out;
}

}  // namespace

Regex::Regex(const std::string& pattern) : Regex(oniguruma_to_pcre(pattern), pattern) {}

Regex Regex::literal(const std::string& text) { return Regex(quoted(text), text); }

Regex::Regex(const std::string& pcre_pattern, const std::string& shown_as) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<RegexCode>();
  code->shown_as = shown_as;
  const auto context = std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)>(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  pcre2_set_max_pattern_length(context.get(), 64 * 1024);
  // MULTILINE because ^ and $ hold at every line in Oniguruma.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre_pattern.data()), pcre_pattern.size(), options, &error,
                             &offset, context.get());
  if (!code->code) throw Error("regular expression \"{}\": {}", shown_as, pcre_message(error));
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

std::optional<std::pair<size_t, size_t>> Regex::find(std::string_view text, size_t from) const {
  MatchScratch& s = scratch();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // A pattern may look back over the whole text a few times (blanks without a newline at their end); one that
  // backtracks without end must come back.
  constexpr size_t kSteps = 1'000'000, kStepsPerByte = 16;
  pcre2_set_match_limit(s.context,
                        static_cast<uint32_t>(std::min<size_t>(kSteps + kStepsPerByte * text.size(), 1u << 31)));
  // A group count above the one pair of offsets is no failure: the whole match is all that is asked for.
  const int rc = code_->jit
                     ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, s.data, s.context)
                     : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, s.data, s.context);
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) throw Error("regular expression \"{}\": {}", code_->shown_as, pcre_message(rc));
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(s.data);
  // \K in a look-around can put the start behind the end; such a match is taken as empty.
  return std::pair<size_t, size_t>(std::min(offsets[0], offsets[1]), offsets[1]);
}

std::optional<std::pair<size_t, size_t>> RegexMatches::next() {
  while (from_ <= text_.size()) {
    const auto match = regex_.find(text_, from_);
    if (!match) return std::nullopt;
    const auto [start, end] = *match;
    if (start == end && last_end_ == end) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = end;
    last_end_ = end;
    return match;
  }
  return std::nullopt;
}

}  // namespace braid
