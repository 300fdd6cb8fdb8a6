// Names of the values a request can end with, as the API and the logs spell them.
#include "sched/request.h"

#include "base/error.h"

namespace braid {

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kRejected:
      return "rejected";
    case FinishReason::kError:
      return "error";
  }
  BRAID_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

}  // namespace braid
