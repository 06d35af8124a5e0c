#include "base/place.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "base/check.h"

namespace byteps::topology {
namespace {

constexpr std::uint8_t kForm = 1;
constexpr std::size_t kHopBytes = 10;
constexpr std::size_t kPeerBytes = 7;
static_assert(3 + 2 * kHopsMax * kHopBytes + 8 + 1 + kPeersMax * kPeerBytes <= kPlaceBytesMax);

// A number of exactly so many hexadecimal digits; the text is what follows it.
std::optional<std::uint32_t> take_hex(std::string_view& text, std::size_t least, std::size_t most) {
  std::uint32_t value = 0;
  const char* const end = text.data() + std::min(text.size(), most);
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  const auto digits = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc() || digits < least) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, char sign) {
  if (text.empty() || text.front() != sign) return false;
  text.remove_prefix(1);
  return true;
}

class Writer {
 public:
  void put(std::uint64_t value, std::size_t bytes) {
    for (; bytes > 0; --bytes, value >>= 8) {
      bytes_.push_back(static_cast<std::byte>(value & 0xff));
    }
  }
  void put(const PciAddress& address) {
    put(address.domain, 4);
    put(address.bus, 1);
    put(address.slot, 1);
  }
  void put(const std::vector<Hop>& path) {
    CHECK(path.size() <= kHopsMax);
    put(path.size(), 1);
    for (const Hop& hop : path) {
      put(hop.address);
      put(hop.rate_mbps, 4);
    }
  }
  std::vector<std::byte> bytes() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// What is beyond the end is 0, and is_good() false from then on.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename Value>
  Value get() {
    if (bytes_.size() < sizeof(Value)) {
      require(false);
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = sizeof(Value); i-- > 0;) {
      value = value << 8 | std::to_integer<std::uint64_t>(bytes_[i]);
    }
    bytes_ = bytes_.subspan(sizeof(Value));
    return static_cast<Value>(value);
  }
  PciAddress address() {
    PciAddress address;
    address.domain = get<std::uint32_t>();
    address.bus = get<std::uint8_t>();
    address.slot = get<std::uint8_t>();
    return address;
  }
  std::vector<Hop> path() {
    std::vector<Hop> path;
    const auto count = get<std::uint8_t>();
    require(count <= kHopsMax);
    for (std::size_t i = 0; i < count && is_good_; ++i) {
      const Hop hop{.address = address(), .rate_mbps = get<std::uint32_t>()};
      require(hop.rate_mbps <= kRateMbpsMax);
      for (const Hop& before : path) require(before.address != hop.address);
      path.push_back(hop);
    }
    return path;
  }
  std::int16_t node() {
    const auto node = get<std::int16_t>();
    require(node >= -1 && node <= kNodeMax);
    return node;
  }
  void require(bool condition) { is_good_ = is_good_ && condition; }
  bool is_good() const { return is_good_; }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool is_good_ = true;
};

}  // namespace

std::string PciAddress::text() const {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", domain, unsigned{bus},
                unsigned{slot} >> 3, unsigned{slot} & 7);
  return text.data();
}

std::optional<PciAddress> PciAddress::parse(std::string_view text) {
  const auto domain = take_hex(text, 4, 8);
  if (!domain || !take(text, ':')) return std::nullopt;
  const auto bus = take_hex(text, 2, 2);
  if (!bus || !take(text, ':')) return std::nullopt;
  const auto device = take_hex(text, 2, 2);
  if (!device || *device > 31 || !take(text, '.')) return std::nullopt;
  const auto function = take_hex(text, 1, 1);
  if (!function || *function > 7 || !text.empty()) return std::nullopt;
  return PciAddress{.domain = *domain,
                    .bus = static_cast<std::uint8_t>(*bus),
                    .slot = static_cast<std::uint8_t>(*device << 3 | *function)};
}

std::vector<std::byte> encode(const Place& place) {
  CHECK(place.peers.size() <= kPeersMax);
  Writer writer;
  writer.put(kForm, 1);
  writer.put(place.device);
  writer.put(place.card);
  writer.put(static_cast<std::uint16_t>(place.device_node), 2);
  writer.put(static_cast<std::uint16_t>(place.card_node), 2);
  writer.put(place.card_mbps, 4);
  writer.put(place.peers.size(), 1);
  for (const Peer& peer : place.peers) {
    writer.put(peer.address);
    writer.put(peer.links, 1);
  }
  return std::move(writer).bytes();
}

std::optional<Place> decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  reader.require(bytes.size() <= kPlaceBytesMax);
  reader.require(reader.get<std::uint8_t>() == kForm);
  Place place;
  place.device = reader.path();
  place.card = reader.path();
  place.device_node = reader.node();
  place.card_node = reader.node();
  place.card_mbps = reader.get<std::uint32_t>();
  reader.require(place.card_mbps <= kRateMbpsMax);
  const auto count = reader.get<std::uint8_t>();
  reader.require(count <= kPeersMax);
  for (std::size_t i = 0; i < count && reader.is_good(); ++i) {
    const Peer peer{.address = reader.address(), .links = reader.get<std::uint8_t>()};
    reader.require(peer.links > 0);
    reader.require(place.peers.empty() || place.peers.back().address < peer.address);
    place.peers.push_back(peer);
  }
  if (!reader.is_good() || !reader.is_at_end()) return std::nullopt;
  return place;
}

}  // namespace byteps::topology
