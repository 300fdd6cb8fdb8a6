// GPT-2's printable alphabet: each byte as one character, so that byte-level vocabularies are ordinary strings.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

char32_t byte_to_alphabet(unsigned char byte);
std::optional<unsigned char> alphabet_to_byte(char32_t c);

void append_as_alphabet(std::string& out, std::string_view bytes);

// The bytes that valid UTF-8 `text` spells; none if a character is not of the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

}  // namespace braid
