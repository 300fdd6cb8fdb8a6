// The benchmarks of `braid bench`, and what those in process share.
#pragma once
#include "apps/app.h"
#include "apps/engine_run.h"
#include "base/json.h"

namespace braid {

int run_bench_decode(const Arguments&);

// To `file` as well, where one is named; throws Error when it cannot be written.
void write_result_file(const std::string& file, const Json& result);

}  // namespace braid
