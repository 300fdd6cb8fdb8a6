#include "client/http_client.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {

HttpUrl parse_http_url(const std::string& url) {
  const std::string scheme = "http://";
  if (url.rfind(scheme, 0) != 0 || url.size() == scheme.size()) {
    throw Error("--url '{}' is not of the form http://HOST[:PORT][/PATH]", url);
  }
  const std::string rest = url.substr(scheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string address = rest.substr(0, slash);
  const size_t colon = address.rfind(':');
  HttpUrl parsed{address.substr(0, colon), colon == std::string::npos ? "80" : address.substr(colon + 1),
                 rest.substr(slash)};
  while (!parsed.path.empty() && parsed.path.back() == '/') parsed.path.pop_back();
  if (parsed.host.empty() || parsed.port.empty()) throw Error("--url '{}' names no host or an empty port", url);
  return parsed;
}

Json ask_json(const HttpUrl& url, const std::string& route, const Json& body, const std::string& key) {
  namespace http = boost::beast::http;
  try {
    boost::asio::io_context io;
    boost::asio::ip::tcp::resolver resolver(io);
    boost::asio::ip::tcp::socket socket(io);
    boost::asio::connect(socket, resolver.resolve(url.host, url.port));
    http::request<http::string_body> request(body.is_null() ? http::verb::get : http::verb::post, url.path + route, 11);
    request.set(http::field::host, url.host);
    request.set(http::field::connection, "close");
    if (!key.empty()) request.set(http::field::authorization, "Bearer " + key);
    if (!body.is_null()) {
      request.set(http::field::content_type, "application/json");
      request.body() = to_string(body);
    }
    request.prepare_payload();
    http::write(socket, request);
    boost::beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(int64_t{256} << 20);
    http::read(socket, buffer, parser);
    if (parser.get().result() != http::status::ok) {
      throw RuntimeFailure(
          fmt::format("{}:{} answered {}: {}", url.host, url.port, parser.get().result_int(), parser.get().body()));
    }
    return Json::parse(parser.get().body());
  } catch (const boost::system::system_error& e) {
    throw RuntimeFailure(fmt::format("{}:{} cannot be asked: {}", url.host, url.port, e.what()));
  } catch (const Json::exception& e) {
    throw RuntimeFailure(fmt::format("{}:{} did not answer in JSON: {}", url.host, url.port, e.what()));
  }
}

}  // namespace braid
