#include "base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace braid {

std::atomic<bool> trace_detail::on{false};

namespace {

struct Span {
  const char* name = "";
  TraceTime start, end;
  int64_t number = -1;
  int thread = 0;
  std::string label;  // of an overlapping span; empty: one of a thread
};

struct Ring {
  std::mutex mutex;
  std::string file;
  int process = 0;
  size_t capacity = 0;
  std::vector<Span> spans;  // up to capacity; then the oldest is at `next`
  size_t next = 0;
  int n_threads = 0;
  std::map<int, std::string> thread_names;
};

Ring& ring() {
  static Ring* const the_ring = new Ring;  // threads may end after static objects do
  return *the_ring;
}

int this_thread(Ring& r) {
  static thread_local int number = 0;
  if (number == 0) number = ++r.n_threads;
  return number;
}

void keep(const char* name, const std::string& label, TraceTime start, TraceTime end, int64_t number) {
  if (!tracing()) return;
  Ring& r = ring();
  const std::lock_guard lock(r.mutex);
  Span span{name, start, end, number, this_thread(r), label};
  if (r.spans.size() < r.capacity) {
    r.spans.push_back(std::move(span));
  } else {
    r.spans[r.next] = std::move(span);
    r.next = (r.next + 1) % r.capacity;
  }
}

// Of the host's clock, so that the traces of its processes fit together.
double microseconds(TraceTime t) { return std::chrono::duration<double, std::micro>(t.time_since_epoch()).count(); }

// A complete event ("X") for a thread's span; a pair of asynchronous ones ("b", "e") for an overlapping span.
std::string event_text(const Ring& r, const Span& s, size_t id) {
  const double start = microseconds(s.start), end = microseconds(s.end);
  std::string arguments = s.number < 0 ? "" : fmt::format(R"("number":{})", s.number);
  if (!s.label.empty()) {
    arguments += fmt::format(R"({}"label":{})", arguments.empty() ? "" : ",", to_string(Json(s.label)));
  }
  const std::string head = fmt::format(R"("name":"{}","cat":"braid","pid":{},"tid":{},"args":{{{}}})", s.name,
                                       r.process, s.thread, arguments);
  if (s.label.empty()) return fmt::format("{{\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},{}}}", start, end - start, head);
  return fmt::format("{{\"ph\":\"b\",\"id\":{},\"ts\":{:.3f},{}}},\n{{\"ph\":\"e\",\"id\":{},\"ts\":{:.3f},{}}}", id,
                     start, head, id, end, head);
}

}  // namespace

void start_trace(std::string file, size_t capacity) {
  Ring& r = ring();
  const std::lock_guard lock(r.mutex);
  r.file = std::move(file);
  r.capacity = capacity;
  r.spans.clear();
  r.next = 0;
  trace_detail::on = true;
}

void set_trace_process(int process) {
  const std::lock_guard lock(ring().mutex);
  ring().process = process;
}

void name_trace_thread(const std::string& name) {
  if (!tracing()) return;
  const std::lock_guard lock(ring().mutex);
  ring().thread_names[this_thread(ring())] = name;
}

void trace_span(const char* name, TraceTime start, TraceTime end, int64_t number) {
  keep(name, "", start, end, number);
}

void trace_overlapping(const char* name, const std::string& label, TraceTime start, TraceTime end, int64_t number) {
  keep(name, label, start, end, number);
}

void write_trace() {
  if (!trace_detail::on.exchange(false)) return;
  Ring& r = ring();
  const std::lock_guard lock(r.mutex);
  const std::string path = r.process == 0 ? r.file : fmt::format("{}.{}", r.file, r.process);
  std::FILE* out = std::fopen(path.c_str(), "wb");
  if (!out) throw Error("cannot write {}: {}", path, std::strerror(errno));
  fmt::print(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  fmt::print(out, R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":"process {}"}}}})", r.process,
             r.process);
  for (const auto& [thread, name] : r.thread_names) {
    fmt::print(out, ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}",
               r.process, thread, to_string(Json(name)));
  }
  for (size_t i = 0; i < r.spans.size(); ++i) {
    fmt::print(out, ",\n{}", event_text(r, r.spans[(r.next + i) % r.spans.size()], i));
  }
  fmt::print(out, "\n]}}\n");
  if (std::fclose(out) != 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace braid
