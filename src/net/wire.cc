// The codec. Each message has one function `fields(visitor, message)`: the table of its tags.
// Encoding and decoding are two visitors over the same table, so they cannot disagree.
#include "net/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace byteps::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "the codec copies little-endian numbers");

constexpr std::uint8_t kTypeNumber = 1;
constexpr std::uint8_t kTypeBytes = 2;
constexpr std::size_t kTagCount = 32;  // tags of this version are below; larger ones are skipped

template <typename Number>
void put(std::span<std::byte> at, std::size_t offset, Number number) {
  std::memcpy(at.data() + offset, &number, sizeof number);
}
template <typename Number>
Number get(std::span<const std::byte> at, std::size_t offset) {
  Number number;
  std::memcpy(&number, at.data() + offset, sizeof number);
  return number;
}

Status malformed(std::string what) {
  return {Code::kInvalidArgument, "malformed message: " + std::move(what)};
}

// The options of a Codec.
constexpr std::uint64_t kScaling = 1;
constexpr std::uint64_t kNatural = 2;
constexpr std::uint64_t kL2 = 4;
constexpr std::uint64_t kErrorFeedback = 8;

// ---- visitors

class Writer {
 public:
  void number(std::uint8_t tag, std::uint64_t value) {
    start(tag, kTypeNumber);
    append(value);
  }
  void bytes(std::uint8_t tag, std::span<const std::byte> value) {
    start(tag, kTypeBytes);
    append(static_cast<std::uint32_t>(value.size()));
    out_.insert(out_.end(), value.begin(), value.end());
  }
  void text(std::uint8_t tag, const std::string& value) {
    // Texts are cut rather than refused: they are for people, and names are checked before they
    // come here.
    bytes(tag, first_bytes(value, kTextBytesMax));
  }
  template <typename Number>
  void field(std::uint8_t tag, Number& value) {
    if constexpr (std::is_same_v<Number, std::string>) {
      text(tag, value);
    } else if constexpr (requires { value.value; }) {
      number(tag, value.value);
    } else {
      number(tag, static_cast<std::uint64_t>(value));
    }
  }
  void address(std::uint8_t tag, std::string& value) { text(tag, value); }
  void shape(std::uint8_t tag, Shape& value) {
    if (!value.is_flat()) bytes(tag, std::as_bytes(value.dimensions()));
  }
  // What follows is not sent where it has its usual value, so that equal declarations are equal bytes.
  void factor(std::uint8_t tag, double& value) {
    if (value != 1) number(tag, std::bit_cast<std::uint64_t>(value));
  }
  void logical(std::uint8_t tag, LogicalType& value) {
    if (value != LogicalType::kSame) number(tag, static_cast<std::uint64_t>(value));
  }
  void format(std::uint8_t tag, Format& value) {
    if (value != Format::kPlain) number(tag, static_cast<std::uint64_t>(value));
  }
  // k, seed, options and momentum have this tag and the next three.
  void codec(std::uint8_t tag, SharedCodec& shared) {
    const Codec& value = *shared;
    const auto put = [&](int after, std::uint64_t what) {
      number(static_cast<std::uint8_t>(tag + after), what);
    };
    const std::uint64_t options = (value.scaling ? kScaling : 0) | (value.natural ? kNatural : 0) |
                                  (value.l2 ? kL2 : 0) |
                                  (value.error_feedback ? kErrorFeedback : 0);
    if (value.k != 0) put(0, std::bit_cast<std::uint64_t>(value.k));
    if (value.seed) put(1, *value.seed);
    if (options != 0) put(2, options);
    if (value.momentum) put(3, std::bit_cast<std::uint64_t>(*value.momentum));
  }
  void flag(std::uint8_t tag, bool& value) {
    if (value) number(tag, 1);
  }
  void members(std::uint8_t tag, Members& value) {
    if (!value.is_all()) bytes(tag, value.bitmap());
  }
  template <typename Number>
  void count(std::uint8_t tag, Number& value) {
    if (value != Number()) field(tag, value);
  }
  void incarnation(std::uint8_t tag, Incarnation& value) {
    if (value != Incarnation{}) array(tag, value);
  }
  void cause_kind(std::uint8_t tag, CauseKind& value) {
    if (value != CauseKind::kOther) number(tag, static_cast<std::uint64_t>(value));
  }
  void duration(std::uint8_t tag, TimeNs& value) {
    if (value > 0) number(tag, static_cast<std::uint64_t>(value));
  }
  void brief(std::uint8_t tag, std::string& value, std::size_t bytes_max) {
    if (!value.empty()) bytes(tag, first_bytes(value, bytes_max));
  }
  // Role, rank and host have this tag and the next two.
  void participant(std::uint8_t tag, Participant& value) {
    if (!value.role) return;
    number(tag, static_cast<std::uint64_t>(*value.role));
    if (value.rank != kNoRank) number(static_cast<std::uint8_t>(tag + 1), value.rank);
    brief(static_cast<std::uint8_t>(tag + 2), value.host, kHostTextBytesMax);
  }
  void ranks(std::uint8_t tag, std::vector<std::uint32_t>& value, std::uint32_t /*count_max*/) {
    if (!value.empty()) bytes(tag, Members(value).bitmap());
  }
  void place(std::uint8_t tag, topology::Place& value) {
    if (value != topology::Place()) bytes(tag, topology::encode(value));
  }
  template <std::size_t kCount>
  void array(std::uint8_t tag, std::array<std::byte, kCount>& value) {
    bytes(tag, value);
  }
  template <typename Item>
  void list(std::uint8_t tag, std::vector<Item>& items);  // below: needs the tables
  template <typename Item>
  void some(std::uint8_t tag, std::vector<Item>& items) {
    if (!items.empty()) list(tag, items);
  }

  std::vector<std::byte> take() { return std::move(out_); }

 private:
  static std::span<const std::byte> first_bytes(const std::string& value, std::size_t bytes_max) {
    return std::as_bytes(std::span(value.data(), std::min(value.size(), bytes_max)));
  }
  void start(std::uint8_t tag, std::uint8_t type) {
    out_.push_back(std::byte{tag});
    out_.push_back(std::byte{type});
  }
  template <typename Number>
  void append(Number number) {
    const auto raw = std::as_bytes(std::span(&number, 1));
    out_.insert(out_.end(), raw.begin(), raw.end());
  }
  std::vector<std::byte> out_;
};

class Reader {
 public:
  // Finds the fields first; a visitor then takes them by tag. Absent fields leave the default.
  explicit Reader(std::span<const std::byte> in) {
    while (!in.empty() && status_.is_ok()) in = in.subspan(scan(in));
  }

  template <typename Value>
  void field(std::uint8_t tag, Value& value) {
    if constexpr (std::is_same_v<Value, std::string>) {
      brief(tag, value, kTextBytesMax);
    } else if constexpr (requires { value.value; }) {
      field(tag, value.value);
    } else {
      std::uint64_t number = 0;
      if (number_of(tag, number)) narrow(tag, number, value);
    }
  }
  // Addresses stand in log lines and errors everywhere, so no other bytes get in.
  void address(std::uint8_t tag, std::string& value) {
    field(tag, value);
    const auto stranger = [](unsigned char byte) { return byte <= ' ' || byte > '~'; };
    if (std::any_of(value.begin(), value.end(), stranger)) fail("no address", tag);
  }
  void shape(std::uint8_t tag, Shape& value) {
    std::span<const std::byte> raw;
    std::array<std::uint64_t, kDimensionsMax> dimensions;
    if (!bytes(tag, sizeof dimensions, raw)) return;
    const std::size_t count = raw.size() / sizeof(std::uint64_t);
    // A flat one is not sent, so that equal shapes are equal bytes.
    if (raw.size() % sizeof(std::uint64_t) != 0 || count < 2) return fail("no shape", tag);
    std::memcpy(dimensions.data(), raw.data(), raw.size());
    value = Shape(std::span(dimensions).first(count));
  }
  void factor(std::uint8_t tag, double& value) {
    std::uint64_t number = 0;
    if (!number_of(tag, number)) return;
    value = std::bit_cast<double>(number);
    if (!std::isfinite(value) || value == 0 || value == 1) fail("no factor", tag);
  }
  void logical(std::uint8_t tag, LogicalType& value) {
    std::uint64_t number = 0;
    if (!number_of(tag, number)) return;
    if (number == 0 || number > 0xff) return fail("no logical type", tag);
    value = static_cast<LogicalType>(number);
  }
  void format(std::uint8_t tag, Format& value) {
    std::uint64_t number = 0;
    if (!number_of(tag, number)) return;
    const auto known =
        number <= UINT32_MAX ? format_of(static_cast<std::uint32_t>(number)) : std::nullopt;
    if (!known || *known == Format::kPlain) return fail("unknown format", tag);
    value = *known;
  }
  void codec(std::uint8_t tag, SharedCodec& shared) {
    Codec value;
    words_of_codec(tag, value);
    shared = value;
  }
  // Whether it can be is for its Spec to say.
  void words_of_codec(std::uint8_t tag, Codec& value) {
    std::uint64_t number = 0;
    if (number_of(tag, number)) {
      value.k = std::bit_cast<double>(number);
      if (!std::isfinite(value.k) || value.k == 0) return fail("no k", tag);
    }
    if (number_of(static_cast<std::uint8_t>(tag + 1), number)) value.seed = number;
    if (number_of(static_cast<std::uint8_t>(tag + 3), number)) {
      value.momentum = std::bit_cast<double>(number);
      if (!std::isfinite(*value.momentum)) return fail("no momentum", tag);
    }
    if (!number_of(static_cast<std::uint8_t>(tag + 2), number)) return;
    constexpr std::uint64_t kAllOptions = kScaling | kNatural | kL2 | kErrorFeedback;
    if (number == 0 || (number & ~kAllOptions) != 0) return fail("unknown options", tag);
    value.scaling = (number & kScaling) != 0;
    value.natural = (number & kNatural) != 0;
    value.l2 = (number & kL2) != 0;
    value.error_feedback = (number & kErrorFeedback) != 0;
  }
  void flag(std::uint8_t tag, bool& value) {
    std::uint64_t number = 0;
    if (!number_of(tag, number)) return;
    if (number != 1) return fail("no flag", tag);
    value = true;
  }
  void members(std::uint8_t tag, Members& value) {
    std::span<const std::byte> raw;
    if (!bytes(tag, kBitmapBytesMax, raw)) return;
    std::optional<Members> some = Members::of_bitmap(raw);
    if (!some) return fail("no members", tag);
    value = std::move(*some);
  }
  template <typename Number>
  void count(std::uint8_t tag, Number& value) {
    field(tag, value);
  }
  void incarnation(std::uint8_t tag, Incarnation& value) { array(tag, value); }
  void cause_kind(std::uint8_t tag, CauseKind& value) {
    std::uint64_t number = 0;
    if (!number_of(tag, number)) return;
    const std::optional<CauseKind> kind = cause_kind_of(number);
    if (!kind) return fail("unknown kind of cause", tag);
    value = *kind;
  }
  void duration(std::uint8_t tag, TimeNs& value) {
    std::uint64_t number = 0;
    if (number_of(tag, number)) narrow(tag, number, value);
  }
  void brief(std::uint8_t tag, std::string& value, std::size_t bytes_max) {
    std::span<const std::byte> raw;
    if (!bytes(tag, bytes_max, raw)) return;
    value.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  void participant(std::uint8_t tag, Participant& value) {
    const bool is_known = fields_[tag].type != 0;
    if (!is_known && (fields_[tag + 1].type != 0 || fields_[tag + 2].type != 0)) {
      return fail("a rank or a host of nobody", tag);
    }
    if (is_known) field(tag, value.role.emplace());
    field(static_cast<std::uint8_t>(tag + 1), value.rank);
    brief(static_cast<std::uint8_t>(tag + 2), value.host, kHostTextBytesMax);
  }
  void ranks(std::uint8_t tag, std::vector<std::uint32_t>& value, std::uint32_t count_max) {
    Members some;
    members(tag, some);
    if (!some.is_all() && some.some().back() >= count_max) return fail("too large a rank", tag);
    value = some.some();
  }
  void place(std::uint8_t tag, topology::Place& value) {
    std::span<const std::byte> raw;
    if (!bytes(tag, topology::kPlaceBytesMax, raw)) return;
    std::optional<topology::Place> some = topology::decode(raw);
    // One of nothing is not sent, so that equal messages are equal bytes.
    if (!some || *some == topology::Place()) return fail("no place", tag);
    value = std::move(*some);
  }
  template <std::size_t kCount>
  void array(std::uint8_t tag, std::array<std::byte, kCount>& value) {
    std::span<const std::byte> raw;
    if (!bytes(tag, kCount, raw)) return;
    if (raw.size() != kCount) return fail("a fixed field has another length", tag);
    std::copy(raw.begin(), raw.end(), value.begin());
  }
  template <typename Item>
  void list(std::uint8_t tag, std::vector<Item>& items);
  template <typename Item>
  void some(std::uint8_t tag, std::vector<Item>& items) {
    list(tag, items);
    if (fields_[tag].type != 0 && items.empty()) fail("no entries", tag);
  }

  const Status& status() const { return status_; }

 private:
  struct Field {
    std::uint8_t type = 0;  // 0: absent
    std::uint64_t number = 0;
    std::span<const std::byte> bytes;
  };

  void fail(const char* what, std::uint8_t tag) {
    if (status_.is_ok()) status_ = malformed(std::string(what) + ", tag " + std::to_string(tag));
  }

  // Reads one field; returns its length in `in`.
  std::size_t scan(std::span<const std::byte> in) {
    if (in.size() < 2) return fail("cut off in a field's start", 0), 0;
    const auto tag = static_cast<std::uint8_t>(in[0]);
    Field field;
    field.type = static_cast<std::uint8_t>(in[1]);
    std::size_t length = 2;
    if (field.type == kTypeNumber) {
      length += 8;
      if (in.size() < length) return fail("cut off in a number", tag), 0;
      field.number = get<std::uint64_t>(in, 2);
    } else if (field.type == kTypeBytes) {
      if (in.size() < 6) return fail("cut off in a length", tag), 0;
      const std::size_t count = get<std::uint32_t>(in, 2);
      if (count > in.size() - 6) return fail("a length leaves the message", tag), 0;
      field.bytes = in.subspan(6, count);
      length = 6 + count;
    } else {
      return fail("unknown field type", tag), 0;
    }
    if (tag == 0) return fail("zero is no tag", tag), 0;
    if (tag < kTagCount) {
      if (fields_[tag].type != 0) return fail("a tag stands twice", tag), 0;
      fields_[tag] = field;
    }
    return length;
  }

  bool number_of(std::uint8_t tag, std::uint64_t& number) {
    const Field& field = fields_[tag];
    if (!status_.is_ok() || field.type == 0) return false;
    if (field.type != kTypeNumber) return fail("a number was expected", tag), false;
    number = field.number;
    return true;
  }
  bool bytes(std::uint8_t tag, std::size_t bytes_max, std::span<const std::byte>& value) {
    const Field& field = fields_[tag];
    if (!status_.is_ok() || field.type == 0) return false;
    if (field.type != kTypeBytes) return fail("bytes were expected", tag), false;
    if (field.bytes.size() > bytes_max) return fail("too long", tag), false;
    value = field.bytes;
    return true;
  }

  template <typename Value>
  void narrow(std::uint8_t tag, std::uint64_t number, Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      if (number > 1) return fail("neither 0 nor 1", tag);
      value = number == 1;
    } else if constexpr (std::is_same_v<Value, DType>) {
      const auto known =
          dtype_of(static_cast<std::uint32_t>(std::min<std::uint64_t>(number, 0xffffffff)));
      if (!known) return fail("unknown dtype", tag);
      value = *known;
    } else if constexpr (std::is_same_v<Value, Operation>) {
      const auto known =
          operation_of(static_cast<std::uint32_t>(std::min<std::uint64_t>(number, 0xffffffff)));
      if (!known) return fail("unknown operation", tag);
      value = *known;
    } else if constexpr (std::is_same_v<Value, Summing>) {
      if (number > static_cast<std::uint64_t>(Summing::kAlone)) return fail("unknown summing", tag);
      value = static_cast<Summing>(number);
    } else if constexpr (std::is_same_v<Value, Role>) {
      if (number > static_cast<std::uint64_t>(Role::kWorker)) return fail("unknown role", tag);
      value = static_cast<Role>(number);
    } else {
      if (number > std::numeric_limits<Value>::max()) return fail("number too large", tag);
      value = static_cast<Value>(number);
    }
  }

  std::array<Field, kTagCount> fields_{};
  Status status_;
};

// ---- the tables: one line per field; a tag is never given a new meaning

template <typename Visitor>
void fields(Visitor& v, Endpoint& m) {
  v.address(1, m.host);
  v.field(2, m.port);
}
template <typename Visitor>
void fields(Visitor& v, Declare& m) {
  v.field(1, m.name);
  v.field(2, m.dtype);
  v.field(3, m.operation);
  v.field(4, m.total_bytes);
  v.field(5, m.root);
  v.shape(6, m.shape);
  v.factor(7, m.scale);
  v.flag(8, m.root_only);
  v.members(9, m.members);
  v.logical(10, m.logical);
  v.format(11, m.format);
  v.codec(12, m.codec);  // 12 to 15
}
template <typename Visitor>
void fields(Visitor& v, Text& m) {
  v.field(1, m.text);
  v.field(2, m.code);
  v.cause_kind(3, m.cause.kind);
  v.participant(4, m.cause.who);      // 4 to 6
  v.participant(7, m.cause.told_by);  // 7 to 9
  v.duration(10, m.cause.for_ns);
  v.brief(11, m.cause.detail, kDetailBytesMax);
  v.ranks(12, m.cause.missing_workers, kWorkersMax);
  v.ranks(13, m.cause.missing_servers, kServersMax);
}
template <typename Visitor>
void fields(Visitor& v, Missing& m) {
  v.members(1, m.ranks);
}
template <typename Visitor>
void fields(Visitor& v, NetworkCard& m) {
  v.field(1, m.number);
  v.field(2, m.rate_mbps);
}
template <typename Visitor>
void fields(Visitor& v, Join& m) {
  v.field(1, m.role);
  v.field(2, m.wanted_rank);
  v.field(3, m.worker_count);
  v.field(4, m.server_count);
  v.field(5, m.host);
  v.list(6, m.endpoints);
  v.field(7, m.partition_bytes);
  v.field(8, m.frame_bytes);
  v.field(9, m.life);
  v.field(10, m.machine);
  v.field(11, m.rate_mbps);
  v.field(12, m.machine_index);
  v.field(13, m.card);
  v.field(14, m.relay_port);
  v.field(15, m.local_reduce);
  v.field(16, m.needs_servers);
  v.count(17, m.heard.term);
  v.count(18, m.heard.epoch);
  v.count(19, m.heard.revision);
  v.count(20, m.heard.barriers);
  v.ranks(21, m.heard.left_for_good, kWorkersMax);
  v.ranks(22, m.heard.left_for_a_while, kWorkersMax);
  v.flag(23, m.has_waited);
  v.place(24, m.place);
  v.some(25, m.more_cards);
}
template <typename Visitor>
void fields(Visitor& v, RosterMember& m) {
  v.field(1, m.role);
  v.field(2, m.rank);
  v.field(3, m.host);
  v.list(4, m.endpoints);
  v.field(5, m.machine);
  v.field(6, m.rate_mbps);
  v.field(7, m.machine_index);
  v.field(8, m.card);
  v.field(9, m.relay_port);
  v.count(10, m.life);
  v.count(11, m.vacant_since);
  v.count(12, m.serves_none_since);
  v.count(13, m.place);
  v.some(14, m.more_cards);
}
template <typename Visitor>
void fields(Visitor& v, topology::Place& m) {
  v.place(1, m);
}
template <typename Visitor>
void fields(Visitor& v, Slot& m) {
  v.field(1, m.server);
  v.field(2, m.shard);
  v.field(3, m.weight);
  v.field(4, m.since);
}
template <typename Visitor>
void fields(Visitor& v, Roster& m) {
  v.field(1, m.epoch);
  // 2 was your_rank, which is in the header since version 3.
  v.field(3, m.partition_bytes);
  v.field(4, m.frame_bytes);
  v.list(5, m.members);
  v.field(6, m.summing);
  v.list(7, m.slots);
  v.field(8, m.revision);
  v.field(9, m.recovers);
  v.incarnation(10, m.incarnation);
  v.flag(11, m.continues);
  v.some(12, m.places);
}
template <typename Visitor>
void fields(Visitor& v, Heartbeat& m) {
  v.field(1, m.sent_ns);
  v.field(2, m.echo_ns);
}
template <typename Visitor>
void fields(Visitor& v, Leave& m) {
  v.field(1, m.final);
  v.members(2, m.who);
  v.count(3, m.barriers);
}
template <typename Visitor>
void fields(Visitor& v, Adopt& m) {
  v.field(1, m.rank);
  v.field(2, m.shards);
}
template <typename Visitor>
void fields(Visitor& v, Barrier& m) {
  v.field(1, m.number);
}
template <typename Visitor>
void fields(Visitor& v, Awaited& m) {
  v.field(1, m.name);
  v.field(2, m.key);
  v.field(3, m.round);
}
template <typename Visitor>
void fields(Visitor& v, NotBegun& m) {
  v.field(1, m.key);
  v.field(2, m.round);
}
template <typename Visitor>
void fields(Visitor& v, Stalled& m) {
  v.list(1, m.awaited);
  v.list(2, m.not_begun);
}
template <typename Visitor>
void fields(Visitor& v, Hello& m) {
  v.field(1, m.version);
  v.field(2, m.role);
  v.field(3, m.rank);
  v.field(4, m.epoch);
  v.array(5, m.job_id);
  v.array(6, m.incarnation);
  v.field(7, m.failure_ms);
  v.field(8, m.since);
  v.count(9, m.relay_of);
  v.count(10, m.stands_since);
}

// A list is one bytes field: u32 length and content, again and again.
template <typename Item>
void Writer::list(std::uint8_t tag, std::vector<Item>& items) {
  Writer all;
  for (Item& item : items) {
    Writer one;
    fields(one, item);
    const std::vector<std::byte> content = one.take();
    all.append(static_cast<std::uint32_t>(content.size()));
    all.out_.insert(all.out_.end(), content.begin(), content.end());
  }
  bytes(tag, all.out_);
}

template <typename Item>
void Reader::list(std::uint8_t tag, std::vector<Item>& items) {
  std::span<const std::byte> raw;
  if (!bytes(tag, std::numeric_limits<std::uint32_t>::max(), raw)) return;
  items.clear();
  while (!raw.empty()) {
    if (items.size() == kListMax) return fail("too many entries", tag);
    if (raw.size() < 4) return fail("cut off in a list", tag);
    const std::size_t length = get<std::uint32_t>(raw, 0);
    if (length > raw.size() - 4) return fail("an entry leaves its list", tag);
    Reader one(raw.subspan(4, length));
    Item item;
    fields(one, item);
    if (!one.status().is_ok()) {
      status_ = one.status();
      return;
    }
    items.push_back(std::move(item));
    raw = raw.subspan(4 + length);
  }
}

template <typename Message>
std::vector<std::byte> encode_fields(const Message& message) {
  Writer writer;
  // The tables take a mutable message because decoding fills it; encoding only reads.
  fields(writer, const_cast<Message&>(message));
  return writer.take();
}

template <typename Message>
Result<Message> decode_fields(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Message message;
  fields(reader, message);
  if (!reader.status().is_ok()) return reader.status();
  return message;
}

// What a worker and a shard say to each other. A longer payload does not come through shared memory.
template <typename Message>
Result<Message> decode_private(std::span<const std::byte> bytes) {
  static_assert(kPrivateBytesMax > kTextBytesMax + kDetailBytesMax + 2 * kHostTextBytesMax +
                                       2 * kBitmapBytesMax + 1000,
                "all that is well-formed fits");
  if (bytes.size() > kPrivateBytesMax) return malformed("it is too long");
  return decode_fields<Message>(bytes);
}

bool known(std::uint8_t kind) {
  return (kind >= static_cast<std::uint8_t>(Kind::kPush) &&
          kind <= static_cast<std::uint8_t>(Kind::kSettled)) ||
         (kind >= static_cast<std::uint8_t>(Kind::kJoin) &&
          kind <= static_cast<std::uint8_t>(Kind::kAdopt));
}

}  // namespace

HeaderBytes encode(const Header& header) {
  HeaderBytes out{};
  put(out, 0, static_cast<std::uint8_t>(header.kind));
  put(out, 1, header.flags);
  put(out, 2, header.lost);
  put(out, 4, header.epoch.value);
  put(out, 8, header.key.value);
  put(out, 16, header.part.value);
  put(out, 20, header.round.value);
  put(out, 24, header.offset_bytes);
  put(out, 32, header.worker.value);
  put(out, 36, header.priority);
  put(out, 40, header.tag);
  put(out, 44, header.count);
  return out;
}

Result<Header> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kHeaderBytes) {
    return malformed("a header of " + std::to_string(bytes.size()) + " bytes instead of 48");
  }
  const auto kind = get<std::uint8_t>(bytes, 0);
  if (!known(kind)) return malformed("unknown kind " + std::to_string(kind));
  Header header;
  header.kind = static_cast<Kind>(kind);
  header.flags = get<std::uint8_t>(bytes, 1);
  header.lost = get<std::uint16_t>(bytes, 2);
  header.epoch = Epoch(get<std::uint32_t>(bytes, 4));
  header.key = Key(get<std::uint64_t>(bytes, 8));
  header.part = PartIndex(get<std::uint32_t>(bytes, 16));
  header.round = Round(get<std::uint32_t>(bytes, 20));
  header.offset_bytes = get<std::uint64_t>(bytes, 24);
  header.worker = WorkerRank(get<std::uint32_t>(bytes, 32));
  header.priority = get<std::int32_t>(bytes, 36);
  header.tag = get<std::uint32_t>(bytes, 40);
  header.count = get<std::uint32_t>(bytes, 44);
  return header;
}

Result<Header> header_of(const Event& received) {
  Result<Header> header = decode_header(received.header);
  if (!header.is_ok() || !received.is_shared) return header;
  const Kind kind = header.value().kind;
  if (kind == Kind::kPush || kind == Kind::kAnswer) return header;
  return malformed("words in memory that their sender can still change");
}

std::optional<Glimpse> glimpse(std::span<const std::byte> bytes) {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  const auto kind = static_cast<Kind>(get<std::uint8_t>(bytes, 0));
  if (kind != Kind::kPush && kind != Kind::kAnswer) return std::nullopt;
  return Glimpse{Key(get<std::uint64_t>(bytes, 8)), PartIndex(get<std::uint32_t>(bytes, 16)),
                 get<std::uint32_t>(bytes, 40)};
}

std::vector<std::byte> encode(const Declare& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Text& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Missing& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Join& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Roster& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Heartbeat& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Leave& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Adopt& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Barrier& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Stalled& message) {
  return encode_fields(message);
}
std::vector<std::byte> encode(const Hello& message) {
  return encode_fields(message);
}

Result<Declare> decode_declare(std::span<const std::byte> bytes) {
  return decode_private<Declare>(bytes);
}
Result<Text> decode_text(std::span<const std::byte> bytes) {
  return decode_private<Text>(bytes);
}
Result<Missing> decode_missing(std::span<const std::byte> bytes) {
  return decode_fields<Missing>(bytes);
}
Result<Join> decode_join(std::span<const std::byte> bytes) {
  return decode_fields<Join>(bytes);
}
Result<Roster> decode_roster(std::span<const std::byte> bytes) {
  return decode_fields<Roster>(bytes);
}
Result<Heartbeat> decode_heartbeat(std::span<const std::byte> bytes) {
  return decode_fields<Heartbeat>(bytes);
}
Result<Leave> decode_leave(std::span<const std::byte> bytes) {
  return decode_fields<Leave>(bytes);
}
Result<Adopt> decode_adopt(std::span<const std::byte> bytes) {
  return decode_fields<Adopt>(bytes);
}
Result<Barrier> decode_barrier(std::span<const std::byte> bytes) {
  return decode_fields<Barrier>(bytes);
}
Result<Stalled> decode_stalled(std::span<const std::byte> bytes) {
  return decode_fields<Stalled>(bytes);
}
Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  return decode_fields<Hello>(bytes);
}

}  // namespace byteps::wire
