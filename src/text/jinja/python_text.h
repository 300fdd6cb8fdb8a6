// Python's str and number conventions over UTF-8: what counts as white space, how strings split, how floats print.
// Lengths and indices are in code points. Invalid bytes count as one code point each and pass through unchanged.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace braid {

// Decodes the code point at `at` and moves past it.
char32_t next_code_point(std::string_view text, size_t& at);
int64_t count_code_points(std::string_view text);
size_t byte_offset(std::string_view text, int64_t code_points);  // of the n-th code point; size() beyond the end
std::vector<std::string_view> code_points(std::string_view text);
std::optional<size_t> find_invalid_utf8(std::string_view text);

bool is_python_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal_digit(char32_t c);
bool is_alnum(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_printable(char32_t c);

enum class Side : uint8_t { kBoth, kLeft, kRight };
std::string_view strip(std::string_view text, Side side = Side::kBoth);
std::string_view strip_of(std::string_view text, std::string_view characters, Side side);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);

std::vector<std::string_view> split_space(std::string_view text, int64_t max_splits);
std::vector<std::string_view> rsplit_space(std::string_view text, int64_t max_splits);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// str.replace; `count` < 0 replaces all. Throws Error when the result would exceed max_bytes.
std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count, size_t max_bytes);

std::string float_repr(double value);
std::string string_repr(std::string_view text);
std::string html_escape(std::string_view text);
std::optional<int64_t> parse_int(std::string_view text, int base);  // int("..."), base 0 and 2..36
std::optional<double> parse_float(std::string_view text);           // float("...")

}  // namespace braid
