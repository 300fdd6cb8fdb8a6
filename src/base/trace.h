// What happened when, for people: spans in a ring of fixed size, written as a Chrome trace (chrome://tracing, Perfetto)
// when the program ends. Off, a span costs one relaxed load; on, a lock and two clock readings, once per part of a step
// and per request.
//
//   const TraceSpan span("forward", step);   // until the end of the block
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace braid {

namespace trace_detail {
extern std::atomic<bool> on;
}

// From now on the latest `capacity` spans are kept; write_trace() writes them to `file`, or `file`.N in process N > 0.
void start_trace(std::string file, size_t capacity = 1 << 18);
void set_trace_process(int process);  // this process's place in the run
inline bool tracing() { return trace_detail::on.load(std::memory_order_relaxed); }
void write_trace();  // nothing where tracing is off; throws Error when the file cannot be written

using TraceTime = std::chrono::steady_clock::time_point;

// A span of this thread. `name` must live for ever; `number` (a step, a count) is shown with it, -1: none.
void trace_span(const char* name, TraceTime start, TraceTime end, int64_t number = -1);
// One that overlaps others of its kind, such as a request; `label` tells it from them.
void trace_overlapping(const char* name, const std::string& label, TraceTime start, TraceTime end, int64_t number = -1);
void name_trace_thread(const std::string& name);  // how this thread's row is called

class TraceSpan {
 public:
  explicit TraceSpan(const char* name, int64_t number = -1) : name_(tracing() ? name : nullptr), number_(number) {
    if (name_) start_ = std::chrono::steady_clock::now();
  }
  ~TraceSpan() {
    if (name_) trace_span(name_, start_, std::chrono::steady_clock::now(), number_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_;
  int64_t number_;
  TraceTime start_;
};

}  // namespace braid
