// The page at `/`: files under src/server/page, embedded in the program. They hold nothing secret, so they need no API
// key; what they ask of the server does.
#pragma once
#include <string_view>

#include "server/http_types.h"

namespace braid {

struct PageFile {
  std::string_view path, content_type, body;
};

const PageFile* find_page_file(std::string_view path);  // null: no such file

// The file, or 304 where the request names the version that the client has. The headers forbid the page everything but
// its own modules, its own style sheet and this server: text of the model can neither load nor run anything.
HttpReply page_reply(const PageFile& file, const HttpRequest& request);

}  // namespace braid
