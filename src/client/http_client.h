// One blocking JSON request over HTTP/1.1: enough to ask a server questions. TLS is a proxy's business.
#pragma once
#include <string>

#include "base/json.h"

namespace braid {

struct HttpUrl {
  std::string host, port, path;  // path without a trailing slash
};
HttpUrl parse_http_url(const std::string& url);  // throws Error for anything but http://HOST[:PORT][/PATH]

// POSTs `body` to url.path + `route`, or GETs it where `body` is null, and returns the parsed reply; `key` is the
// bearer token, if one is needed. Throws RuntimeFailure with the server's own words when the status is not 200, and
// when it cannot be reached.
Json ask_json(const HttpUrl& url, const std::string& route, const Json& body, const std::string& key = "");

}  // namespace braid
