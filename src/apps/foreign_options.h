// Options of vLLM's and ATOM's command lines that braid has no row for, so that a pasted command line is answered in
// words: what changes nothing here is taken and noted, what would change the result is refused with the reason.
#pragma once
#include <string>

namespace braid {

enum class ForeignValue { kNone, kOne, kOptional };

struct ForeignOption {
  const char* name;  // dashes, without the leading two
  ForeignValue value;
  bool refused;
  const char* reason;
};

const ForeignOption* foreign_option(const std::string& name);  // nullptr: not known either

}  // namespace braid
