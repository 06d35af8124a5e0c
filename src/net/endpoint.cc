#include "net/endpoint.h"

namespace byteps {

std::string Endpoint::text() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string Hello::text() const {
  return rank == kNoRank ? name(role) : std::string(name(role)) + " " + std::to_string(rank);
}

}  // namespace byteps
