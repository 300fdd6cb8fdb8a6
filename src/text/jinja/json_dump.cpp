// tojson: what Python's json.dumps writes, byte for byte.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja/python_text.h"
#include "text/jinja/runtime.h"
#include "text/jinja/stable_sort.h"

namespace braid {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  std::string out;

  void write(const Value& value, int level) {
    rt_.step();
    if (out.size() > rt_.limits.output_bytes) rt_.charge(out.size());
    switch (value.kind()) {
      case Value::Kind::kNone:
        out += "null";
        return;
      case Value::Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        return;
      case Value::Kind::kInt:
        out += std::to_string(value.as_int());
        return;
      case Value::Kind::kFloat:
        write_float(value.as_float());
        return;
      case Value::Kind::kString:
        write_string(value.text());
        return;
      case Value::Kind::kDict:
        write_dict(value.dict_data(), level);
        return;
      case Value::Kind::kList:
        if (value.list_data().type > ListData::Type::kTuple) break;
        write_list(value.list_data(), level);
        return;
      default:
        break;
    }
    throw Error("Object of type {} is not JSON serializable", python_type_name(value));
  }

 private:
  void write_float(double value) {
    if (std::isnan(value))
      out += "NaN";
    else if (std::isinf(value))
      out += value < 0 ? "-Infinity" : "Infinity";
    else
      out += float_repr(value);
  }

  void write_escaped(char32_t c) {
    if (c >= 0x10000) {
      c -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + static_cast<uint32_t>(c >> 10),
                         0xDC00 + static_cast<uint32_t>(c & 0x3FF));
    } else {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    }
  }

  void write_string(std::string_view text) {
    out += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      const char32_t c = next_code_point(text, at);
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        case '\f':
          out += "\\f";
          break;
        case '\b':
          out += "\\b";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c > 0x7E))
            write_escaped(c);
          else
            out += text.substr(start, at - start);
      }
    }
    out += '"';
  }

  void break_line(int level) {
    if (!style_.has_indent) return;
    rt_.charge(style_.indent.size() * static_cast<size_t>(level));
    out += '\n';
    for (int i = 0; i < level; ++i) out += style_.indent;
  }

  void write_list(const ListData& list, int level) {
    out += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      break_line(level + 1);
      write(list.items[i], level + 1);
    }
    if (!list.items.empty()) break_line(level);
    out += ']';
  }

  void write_key(const Value& key) {
    if (key.is_string()) {
      write_string(key.text());
    } else if (key.is_number() || key.is_none()) {
      out += '"';
      write(key, 0);
      out += '"';
    } else {
      throw Error("keys must be str, int, float, bool or None, not {}", python_type_name(key));
    }
  }

  void write_dict(const DictData& dict, int level) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& item : dict.items) order.push_back(&item);
    if (style_.sort_keys)
      stable_merge_sort(order, [&](const auto* a, const auto* b) { return less(rt_, a->first, b->first); });
    out += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      break_line(level + 1);
      write_key(order[i]->first);
      out += style_.key_separator;
      write(order[i]->second, level + 1);
    }
    if (!order.empty()) break_line(level);
    out += '}';
  }

  Runtime& rt_;
  const JsonStyle& style_;
};

}  // namespace

std::string dump_json(Runtime& rt, const Value& value, const JsonStyle& style) {
  JsonWriter writer(rt, style);
  writer.write(value, 0);
  rt.charge(writer.out.size());
  return std::move(writer.out);
}

}  // namespace braid
