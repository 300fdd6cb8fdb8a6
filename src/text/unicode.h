// Questions about single characters, and normal forms, as Hugging Face's tokenizers (Rust) answer them.
#pragma once
#include <string>
#include <string_view>

namespace braid {

bool is_whitespace(char32_t c);       // White_Space
bool is_numeric(char32_t c);          // Nd, Nl, No
bool is_punctuation(char32_t c);      // P* and ASCII punctuation (which includes some symbols)
bool is_word(char32_t c);             // \w: alphabetic, marks, decimal digits, connectors, joiners
bool is_mark(char32_t c);             // M*
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // control, format, private use

enum class NormalForm { kC, kD, kKC, kKD };
std::string to_normal_form(std::string_view text, NormalForm form);  // text must be valid UTF-8

// Where the extended grapheme cluster that starts at `pos` of valid UTF-8 ends.
size_t next_grapheme(std::string_view text, size_t pos);

// Appends the lower case of c: one character, or two for U+0130.
void append_lowercase(std::string& out, char32_t c);

}  // namespace braid
