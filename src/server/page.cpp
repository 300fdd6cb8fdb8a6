// See page.h. The assembler copies the files into the program; CMake rebuilds this source when one of them changes.
#include "server/page.h"

#include <fmt/format.h>
#include <xxhash.h>

// The one table of files: symbol, file, path, content type.
#define BRAID_PAGE_FILES(ROW)                                \
  ROW(index, "index.html", "/", kHtml)                       \
  ROW(style, "style.css", "/page/style.css", kCss)           \
  ROW(icon, "icon.svg", "/page/icon.svg", kSvg)              \
  ROW(main, "main.js", "/page/main.js", kScript)             \
  ROW(chat, "chat.js", "/page/chat.js", kScript)             \
  ROW(message, "message.js", "/page/message.js", kScript)    \
  ROW(markdown, "markdown.js", "/page/markdown.js", kScript) \
  ROW(api, "api.js", "/page/api.js", kScript)                \
  ROW(store, "store.js", "/page/store.js", kScript)          \
  ROW(dom, "dom.js", "/page/dom.js", kScript)                \
  ROW(live, "live.js", "/page/live.js", kScript)             \
  ROW(drawing, "drawing.js", "/page/drawing.js", kScript)

#define BRAID_EMBED(symbol, file, path, type)                                                 \
  __asm__(".pushsection .rodata\nbraid_page_" #symbol ":\n.incbin \"" BRAID_PAGE_DIR "/" file \
          "\"\nbraid_page_" #symbol "_end:\n.popsection\n");                                  \
  extern "C" const char braid_page_##symbol[], braid_page_##symbol##_end[];
BRAID_PAGE_FILES(BRAID_EMBED)

namespace braid {
namespace {

constexpr std::string_view kHtml = "text/html; charset=utf-8", kCss = "text/css; charset=utf-8",
                           kScript = "text/javascript; charset=utf-8", kSvg = "image/svg+xml";

#define BRAID_DESCRIBE(symbol, file, path, type) \
  PageFile{path, type, std::string_view(braid_page_##symbol, braid_page_##symbol##_end - braid_page_##symbol)},
const PageFile kFiles[] = {BRAID_PAGE_FILES(BRAID_DESCRIBE)};

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  for (const PageFile& file : kFiles)
    if (file.path == path) return &file;
  return nullptr;
}

HttpReply page_reply(const PageFile& file, const HttpRequest& request) {
  const std::string version = fmt::format("\"{:016x}\"", XXH3_64bits(file.body.data(), file.body.size()));
  HttpReply reply{.content_type = std::string(file.content_type)};
  reply.headers = {{"Content-Security-Policy", kPolicy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cross-Origin-Opener-Policy", "same-origin"},
                   {"Cache-Control", "no-cache"},  // asked again each time, answered by 304
                   {"ETag", version}};
  if (request.header("if-none-match").find(version) != std::string_view::npos)
    reply.status = 304;
  else
    reply.body = file.body;
  return reply;
}

}  // namespace braid
