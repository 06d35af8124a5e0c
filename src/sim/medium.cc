#include "sim/medium.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace byteps::sim {

Medium::Medium(SimNetworkOptions network_options, const Prng& chance, Trace& events)
    : options(std::move(network_options)), prng(chance), trace(events) {
  CHECK(!options.lending.empty());
}

void Medium::lose_tail(Direction& way, std::uint64_t from) {
  way.lost_from = std::min(way.lost_from, from + prng.below(way.count_from(from) + 1));
}

TimeNs Medium::held_until(const Connection& connection, int side) const {
  const HostIndex from = connection.ends[side].host;
  const HostIndex to = connection.ends[1 - side].host;
  return std::max(connection.way[side].depart_not_before_ns, obstacles.wall_until(from, to, now()));
}

void Medium::note(Trace::What what, const char* word, const Connection& connection, int side,
                  std::span<const std::byte> header, const Status& why) {
  const End& end = connection.ends[side];
  const End& other = connection.ends[1 - side];
  trace.note(now(), what, end.number, other.number,
             connection.id ^ (header.empty() ? 0 : hash_of(header) << 8));
  if (!trace.keeps_text()) return;
  const std::string message = header.empty() || !options.describe ? "" : options.describe(header);
  if (!header.empty() && options.describe && message.empty()) return;  // not worth a line
  std::string text = end.name + " " + word + " " +
                     (other.name.empty() ? connection.to.text() : other.name) + " (connection " +
                     std::to_string(connection.id) + ")";
  if (!message.empty()) text += ": " + message;
  if (!why.is_ok()) text += ": " + why.message();
  trace.say(now(), text);
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = bytes.size();
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  for (; at < bytes.size(); ++at) hash = (hash ^ static_cast<std::uint64_t>(bytes[at])) * 31;
  return hash;
}

}  // namespace byteps::sim
