#include "base/error.h"
#include "comm/host_group.h"
namespace braid {
void HostGroup::serve_across(const Call&) { BRAID_CHECK(false); }
}  // namespace braid
