// The codec: what goes in comes out; the bytes never change by accident (golden); nothing read from
// a stranger can do more than make a message malformed.
#include "net/wire.h"

#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/prng.h"
#include "gtest/gtest.h"

namespace byteps::wire {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    out.push_back(kDigits[static_cast<int>(b) >> 4]);
    out.push_back(kDigits[static_cast<int>(b) & 15]);
  }
  return out;
}

Header sample_header() {
  Header header;
  header.kind = Kind::kAnswer;
  header.flags = kNoPayload;
  header.epoch = Epoch(0x01020304);
  header.key = Key(0x1112131415161718);
  header.part = PartIndex(0x21222324);
  header.round = Round(0x31323334);
  header.offset_bytes = 0x4142434445464748;
  header.worker = WorkerRank(0x51525354);
  header.tag = 0x65666768;
  header.count = 0x61626364;
  return header;
}

Join sample_join() {
  Join join;
  join.role = Role::kServer;
  join.wanted_rank = 3;
  join.worker_count = 4;
  join.server_count = 2;
  join.host = "node7:4711";
  join.endpoints = {{"10.0.0.7", 9000}, {"fe80::1", 65535}};
  join.partition_bytes = 4096000;
  join.frame_bytes = 32768;
  join.life = 5;
  join.machine_index = 6;
  join.card = 11;
  return join;
}

Text sample_text() {
  Text text{"worker 1 is gone", 4};
  text.cause = {.kind = CauseKind::kGone,
                .who = {Role::kWorker, 1, "beta:11"},
                .told_by = {Role::kScheduler, kNoRank, ""},
                .for_ns = 3 * kSecond,
                .detail = "connection reset",
                .missing_workers = {0, 1, 7, 8},
                .missing_servers = {2}};
  return text;
}

Roster sample_roster() {
  Roster roster;
  roster.epoch = Epoch(2);
  roster.partition_bytes = 4096000;
  roster.frame_bytes = 32768;
  roster.summing = Summing::kAlone;
  roster.members = {{Role::kWorker, 0, "a:1", {}, 7, 8, 9, 10, 11},
                    {Role::kServer, 0, "b:2", {{"::1", 80}, {"::1", 81}}}};
  roster.slots = {{0, 0, 256}, {0, 1, 255, 3}};
  roster.revision = 3;
  roster.recovers = true;
  roster.members[0].more_cards = {{.number = 14, .rate_mbps = 15}};
  return roster;
}

topology::Place sample_place() {
  topology::Place place;
  place.device = {{{.domain = 0, .bus = 6, .slot = 8}, 258}};
  place.device_node = 1;
  place.card_mbps = 3;
  return place;
}

TEST(Wire, header_has_exactly_these_bytes) {
  EXPECT_EQ(hex(encode(sample_header())),
            "0201000004030201181716151413121124232221343332314847464544434241"
            "54535251000000006867666564636261");
}

TEST(Wire, control_messages_have_exactly_these_bytes) {
  Declare declare;
  declare.name = "w";
  declare.dtype = DType::kFloat64;
  declare.operation = Operation::kBroadcast;
  declare.total_bytes = 0x0102030405060708;
  declare.root = WorkerRank(9);
  EXPECT_EQ(hex(encode(declare)),
            "01020100000077"          // 1: bytes, 1, "w"
            "02010100000000000000"    // 2: float64
            "03010200000000000000"    // 3: broadcast
            "04010807060504030201"    // 4: bytes of the tensor
            "05010900000000000000");  // 5: root
  declare.name.clear();
  declare.shape = Shape(std::array<std::uint64_t, 2>{258, 3});
  EXPECT_EQ(hex(encode(declare)).substr(12 + 4 * 20),
            "060210000000"  // 6: bytes, 16
            "02010000000000000300000000000000");
  declare.shape = {};
  declare.operation = Operation::kSum;
  declare.scale = -0.5;
  declare.root_only = true;
  declare.members = Members(std::array<std::uint32_t, 3>{0, 9, 10});
  EXPECT_EQ(hex(encode(declare)).substr(12 + 4 * 20),
            "0701000000000000e0bf"  // 7: -0.5 as IEEE 754 has it
            "08010100000000000000"  // 8: for the root alone
            "0902020000000106");    // 9: bytes, 2, ranks 0, 9 and 10
  EXPECT_EQ(hex(encode(Leave{false})), "01010000000000000000");
  EXPECT_EQ(hex(encode(Barrier{258})), "01010201000000000000");
  EXPECT_EQ(hex(encode(Adopt{258, 3})), "0101020100000000000002010300000000000000");
  EXPECT_EQ(hex(encode(Heartbeat{258, 3})), "0101020100000000000002010300000000000000");
}

TEST(Wire, every_message_comes_out_as_it_went_in) {
  EXPECT_EQ(decode_header(encode(sample_header())).value(), sample_header());
  EXPECT_EQ(decode_join(encode(sample_join())).value(), sample_join());
  Join of_two_cards = sample_join();
  of_two_cards.more_cards = {{.number = 12, .rate_mbps = 100}, {.number = 13, .rate_mbps = 0}};
  EXPECT_EQ(decode_join(encode(of_two_cards)).value(), of_two_cards);
  EXPECT_EQ(hex(encode(of_two_cards)).substr(2 * encode(sample_join()).size()),
            "190230000000"  // 25: bytes, 48
            "14000000"
            "01010c00000000000000"
            "02016400000000000000"
            "14000000"
            "01010d00000000000000"
            "02010000000000000000");
  EXPECT_EQ(decode_roster(encode(sample_roster())).value(), sample_roster());
  const Text text{"why", 4};
  EXPECT_EQ(decode_text(encode(text)).value(), text);
  EXPECT_EQ(decode_text(encode(sample_text())).value(), sample_text());
  const Adopt adopt{~0U, 256};
  EXPECT_EQ(decode_adopt(encode(adopt)).value(), adopt);
  const Barrier barrier{~0ULL};
  EXPECT_EQ(decode_barrier(encode(barrier)).value(), barrier);
  const Heartbeat heartbeat{~0ULL, 1};
  EXPECT_EQ(decode_heartbeat(encode(heartbeat)).value(), heartbeat);
  EXPECT_EQ(decode_heartbeat({}).value(), Heartbeat{}) << "most have no payload";
  Hello hello;
  hello.role = Role::kServer;
  hello.rank = 5;
  hello.epoch = Epoch(6);
  hello.job_id[15] = std::byte{0xff};
  hello.incarnation[0] = std::byte{0xfe};
  EXPECT_EQ(decode_hello(encode(hello)).value(), hello);
  const Stalled stalled{{{"w", key_of("w"), 7}, {"", Key(), 3}}, {{key_of("v"), ~0ULL}}};
  EXPECT_EQ(decode_stalled(encode(stalled)).value(), stalled);
  const Declare declare{{DType::kBfloat16, Operation::kAverage, 5ULL << 32}, "layer.weight"};
  EXPECT_EQ(decode_declare(encode(declare)).value(), declare);
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{5}, kDimensionsMax}) {
    Declare shaped = declare;
    shaped.shape = Shape(std::vector<std::uint64_t>(count, 7));
    EXPECT_EQ(decode_declare(encode(shaped)).value(), shaped) << count;
  }
}

TEST(Wire, a_logical_type_is_one_byte_and_sent_only_where_there_is_one) {
  Declare declare{{DType::kUint8, Operation::kBroadcast, 24, WorkerRank(1)}, "w"};
  const std::size_t plain_bytes = encode(declare).size();
  for (const int number : {1, 5, 255}) {
    declare.logical = static_cast<LogicalType>(number);
    std::vector<std::byte> bytes = encode(declare);
    EXPECT_GT(bytes.size(), plain_bytes);
    EXPECT_EQ(decode_declare(bytes).value(), declare);
    bytes[bytes.size() - 7] = std::byte{1};  // the second byte of its u64
    EXPECT_TRUE(decode_declare(bytes).status().is(Code::kInvalidArgument));
  }
}

TEST(Wire, a_format_is_sent_only_where_there_is_one_and_must_be_known) {
  Declare declare{{DType::kFloat32, Operation::kSum, 24}, "w"};
  const std::size_t plain_bytes = encode(declare).size();
  for (int number = 1; number < kFormatCount; ++number) {
    declare.format = static_cast<Format>(number);
    EXPECT_EQ(encode(declare).size(), plain_bytes + 10);
    EXPECT_EQ(hex(encode(declare)).substr(2 * plain_bytes),
              "0b010" + std::to_string(number) + "00000000000000");
    EXPECT_EQ(decode_declare(encode(declare)).value(), declare);
  }
  std::vector<std::byte> bytes = encode(declare);
  for (const int wrong : {0, kFormatCount, 255}) {
    bytes[plain_bytes + 2] = static_cast<std::byte>(wrong);
    EXPECT_TRUE(decode_declare(bytes).status().is(Code::kInvalidArgument)) << wrong;
  }
}

TEST(Wire, a_codec_is_sent_only_where_it_says_something) {
  Declare declare{{DType::kFloat32, Operation::kSum, 24}, "w"};
  declare.format = Format::kDithering;
  const std::size_t before = encode(declare).size();
  declare.codec =
      Codec{.k = 4, .seed = 0, .natural = true, .error_feedback = true, .momentum = 0.5};
  std::vector<std::byte> bytes = encode(declare);
  EXPECT_EQ(hex(bytes).substr(2 * before),
            "0c010000000000001040"
            "0d010000000000000000"
            "0e010a00000000000000"
            "0f01000000000000e03f");
  EXPECT_EQ(decode_declare(bytes).value(), declare);
  for (const int options : {0, 16, 255}) {
    bytes[before + 22] = static_cast<std::byte>(options);
    EXPECT_TRUE(decode_declare(bytes).status().is(Code::kInvalidArgument)) << options;
  }
  declare.codec = Codec{.scaling = true};
  EXPECT_EQ(decode_declare(encode(declare)).value(), declare);
  declare.codec = Codec{.l2 = true};
  EXPECT_EQ(decode_declare(encode(declare)).value(), declare);
}

TEST(Wire, a_shape_has_2_to_64_dimensions_of_8_bytes) {
  const auto declare_with = [](std::size_t shape_bytes) {
    std::vector<std::byte> bytes = encode(Declare{});
    for (const std::size_t head : {std::size_t{6}, std::size_t{2}, shape_bytes & 255,
                                   shape_bytes >> 8, std::size_t{0}, std::size_t{0}}) {
      bytes.push_back(static_cast<std::byte>(head));
    }
    bytes.resize(bytes.size() + shape_bytes, std::byte{1});
    return decode_declare(bytes);
  };
  EXPECT_TRUE(declare_with(16).is_ok());
  EXPECT_TRUE(declare_with(64 * 8).is_ok());
  for (const std::size_t shape_bytes : {0, 1, 8, 15, 17, 64 * 8 + 8, 4096}) {
    EXPECT_TRUE(declare_with(shape_bytes).status().is(Code::kInvalidArgument)) << shape_bytes;
  }
}

TEST(Wire, a_scale_is_a_number_that_changes_something_and_members_have_one_form) {
  Declare declare;
  declare.name = "w";
  const auto with = [&](std::uint8_t tag, std::uint64_t number) {
    std::vector<std::byte> bytes = encode(declare);
    bytes.push_back(std::byte{tag});
    bytes.push_back(std::byte{1});
    const auto raw = std::as_bytes(std::span(&number, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    return decode_declare(bytes);
  };
  EXPECT_EQ(with(7, std::bit_cast<std::uint64_t>(0.25)).value().scale, 0.25);
  for (const double wrong : {0.0, -0.0, 1.0, double{NAN}, double{INFINITY}}) {
    EXPECT_FALSE(with(7, std::bit_cast<std::uint64_t>(wrong)).is_ok()) << wrong;
  }
  EXPECT_TRUE(with(8, 1).value().root_only);
  EXPECT_FALSE(with(8, 0).is_ok());
  EXPECT_FALSE(with(8, 2).is_ok());
  EXPECT_FALSE(with(9, 1).is_ok()) << "members are bytes";
  declare.members = Members(std::array<std::uint32_t, 2>{1, kWorkersMax - 1});
  declare.scale = 3;
  EXPECT_EQ(decode_declare(encode(declare)).value(), declare);
  std::vector<std::byte> bytes = encode(declare);
  bytes.back() = std::byte{0};
  EXPECT_FALSE(decode_declare(bytes).is_ok()) << "ends with an empty byte";
}

TEST(Wire, an_unknown_tag_is_skipped) {
  std::vector<std::byte> bytes = encode(Barrier{7});
  const std::vector<std::byte> unknown = {std::byte{200}, std::byte{2}, std::byte{1}, std::byte{0},
                                          std::byte{0},   std::byte{0}, std::byte{42}};
  bytes.insert(bytes.begin(), unknown.begin(), unknown.end());
  EXPECT_EQ(decode_barrier(bytes).value().number, 7U);
}

TEST(Wire, an_absent_field_keeps_its_default) {
  EXPECT_TRUE(decode_leave({}).value().final);
}

TEST(Wire, a_tag_that_stands_twice_is_malformed) {
  std::vector<std::byte> bytes = encode(Barrier{7});
  const std::vector<std::byte> again = bytes;
  bytes.insert(bytes.end(), again.begin(), again.end());
  EXPECT_TRUE(decode_barrier(bytes).status().is(Code::kInvalidArgument));
}

TEST(Wire, a_wrong_type_or_an_unknown_value_is_malformed) {
  std::vector<std::byte> bytes = encode(Declare{});
  std::vector<std::byte> dtype = bytes;
  dtype[6 + 2] = std::byte{99};  // after the empty name: tag 2, its value
  EXPECT_FALSE(decode_declare(dtype).is_ok());
  std::vector<std::byte> leave = encode(Leave{true});
  leave[2] = std::byte{2};  // neither false nor true
  EXPECT_FALSE(decode_leave(leave).is_ok());
  leave[1] = std::byte{3};  // no such type
  EXPECT_FALSE(decode_leave(leave).is_ok());
}

TEST(Wire, who_sums_is_one_of_three) {
  Roster roster = sample_roster();
  for (const Summing summing : {Summing::kServers, Summing::kRelays, Summing::kAlone}) {
    roster.summing = summing;
    EXPECT_EQ(decode_roster(encode(roster)).value().summing, summing);
  }
  roster.summing = static_cast<Summing>(3);
  EXPECT_FALSE(decode_roster(encode(roster)).is_ok());
}

// Found by the fuzz target "worker": a roster's address put bytes into a notice that move a terminal's cursor.
TEST(Wire, what_a_member_was_told_is_in_its_join_and_nothing_where_that_is_nothing) {
  Join join;
  join.host = "alpha:10";
  const std::size_t plain_bytes = encode(join).size();
  join.heard.term = 2;
  join.heard.epoch = Epoch(3);
  join.heard.revision = 4;
  join.heard.barriers = 5;
  join.heard.left_for_good = {0, 9};
  join.heard.left_for_a_while = {2};
  const std::vector<std::byte> bytes = encode(join);
  EXPECT_EQ(decode_join(bytes).value(), join);
  EXPECT_EQ(hex(std::span(bytes).subspan(plain_bytes)),
            "11010200000000000000"  // term
            "12010300000000000000"  // epoch
            "13010400000000000000"  // revision
            "14010500000000000000"  // barriers
            "1502020000000102"      // who has left for good: a bit each
            "16020100000004");      // and for a while
}

TEST(Wire, who_leaves_and_where_a_job_recovers_have_exactly_these_bytes) {
  const Leave leave{true, Members(std::vector<std::uint32_t>{1}), 7};
  EXPECT_EQ(hex(encode(leave)),
            "01010100000000000000"
            "02020100000002"
            "03010700000000000000");
  EXPECT_EQ(decode_leave(encode(leave)).value(), leave);
  Roster roster = sample_roster();
  roster.recovers = true;
  roster.incarnation[15] = std::byte{3};
  roster.members[0].life = 77;
  EXPECT_EQ(decode_roster(encode(roster)).value(), roster);
}

TEST(Wire, a_place_has_exactly_these_bytes_in_a_join_and_stands_once_in_a_roster) {
  Join join;
  const std::size_t plain_bytes = encode(join).size();
  join.place = sample_place();
  const std::vector<std::byte> bytes = encode(join);
  EXPECT_EQ(decode_join(bytes).value(), join);
  const std::string place =
      "0101000000000608"  // form 1, one hop: domain 0, bus 6, device 1
      "02010000"          // 258 Mbit/s
      "00"                // no card
      "0100ffff"          // node 1, the card's is not known
      "0300000000";       // 3 Mbit/s, no peers
  EXPECT_EQ(hex(std::span(bytes).subspan(plain_bytes)), "180216000000" + place);

  Roster roster = sample_roster();
  const std::string without = hex(encode(roster));
  roster.places = {sample_place()};
  EXPECT_EQ(hex(encode(roster)), without +
                                     "0c0220000000"  // 12: bytes, 32
                                     "1c000000"
                                     "010216000000" +
                                     place);
  roster.members[0].place = 1;
  EXPECT_EQ(decode_roster(encode(roster)).value(), roster);
  std::vector<std::byte> none = encode(sample_roster());
  for (const int byte : {0x0c, 2, 0, 0, 0, 0}) none.push_back(static_cast<std::byte>(byte));
  EXPECT_FALSE(decode_roster(none).is_ok()) << "an empty list is not sent";
}

TEST(Wire, a_place_that_is_none_is_malformed) {
  Join join;
  const std::size_t begin = encode(join).size() + 6;
  join.place = sample_place();
  const std::vector<std::byte> good = encode(join);
  ASSERT_TRUE(decode_join(good).is_ok());
  const auto with = [&](std::size_t at, int value) {
    std::vector<std::byte> bytes = good;
    bytes[begin + at] = static_cast<std::byte>(value);
    return decode_join(bytes);
  };
  EXPECT_FALSE(with(0, 2).is_ok()) << "another form";
  EXPECT_FALSE(with(1, 2).is_ok()) << "more hops than there are";
  EXPECT_FALSE(with(1, 0).is_ok()) << "bytes behind it";
  EXPECT_FALSE(with(21, 1).is_ok()) << "a peer that is not there";
  // What has no place says none.
  const auto of = [](std::vector<std::byte> place) {
    std::vector<std::byte> bytes = {std::byte{24}, std::byte{2}};
    const auto size = static_cast<std::uint32_t>(place.size());
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<std::byte>(size >> shift & 0xff));
    }
    bytes.insert(bytes.end(), place.begin(), place.end());
    return decode_join(bytes);
  };
  EXPECT_TRUE(of(topology::encode(sample_place())).is_ok());
  EXPECT_FALSE(of(topology::encode(topology::Place())).is_ok());
  EXPECT_FALSE(of({}).is_ok());
  EXPECT_FALSE(of(std::vector<std::byte>(topology::kPlaceBytesMax + 1)).is_ok());
}

TEST(Wire, an_address_with_bytes_that_no_address_has_is_malformed) {
  for (const char* host : {"10.0.0.4\n", "\x9f.0.0.1", "\x1b[2J", "my host"}) {
    Roster roster = sample_roster();
    roster.members[1].endpoints[0].host = host;
    EXPECT_FALSE(decode_roster(encode(roster)).is_ok()) << host;
    Join join = sample_join();
    join.endpoints[1].host = host;
    EXPECT_FALSE(decode_join(encode(join)).is_ok()) << host;
  }
}

TEST(Wire, a_length_that_leaves_the_message_is_malformed) {
  std::vector<std::byte> bytes = encode(Text{"hello", 1});
  bytes[2] = std::byte{0xff};
  bytes[5] = std::byte{0xff};
  EXPECT_FALSE(decode_text(bytes).is_ok());
}

TEST(Wire, a_text_beyond_its_limit_is_cut_when_sent_and_refused_when_received) {
  Text text{std::string(kTextBytesMax + 100, 'x'), 1};
  EXPECT_EQ(decode_text(encode(text)).value().text.size(), kTextBytesMax);
  std::vector<std::byte> bytes = {std::byte{1},    std::byte{2}, std::byte{1},
                                  std::byte{0x10}, std::byte{0}, std::byte{0}};
  bytes.resize(6 + 0x1001, std::byte{'x'});
  EXPECT_FALSE(decode_text(bytes).is_ok());
}

TEST(Wire, a_text_without_a_cause_is_as_long_as_ever) {
  EXPECT_EQ(hex(encode(Text{"why", 4})),
            "010203000000776879"      // 1: bytes, 3, "why"
            "02010400000000000000");  // 2: 4
}

TEST(Wire, a_cause_travels_as_fields) {
  Text text{"", 4};
  text.cause.kind = CauseKind::kGone;
  text.cause.who = {Role::kServer, 1, "a:7"};
  text.cause.for_ns = 3;
  text.cause.missing_workers = {0, 9};
  EXPECT_EQ(hex(encode(text)).substr(12 + 20),
            "03010100000000000000"  // 3: gone
            "04010100000000000000"  // 4: a server
            "05010100000000000000"  // 5: of rank 1
            "060203000000613a37"    // 6: bytes, 3, "a:7"
            "0a010300000000000000"  // 10: 3 ns
            "0c02020000000102");    // 12: bytes, 2, ranks 0 and 9
}

// Each of all kinds, with anything it may have.
TEST(Wire, every_kind_of_cause_comes_out_as_it_went_in) {
  for (std::uint64_t number = 0; const auto kind = cause_kind_of(number); ++number) {
    Text text = sample_text();
    text.cause.kind = *kind;
    EXPECT_EQ(decode_text(encode(text)).value(), text) << name(*kind);
    text.cause = {.kind = *kind};
    EXPECT_EQ(decode_text(encode(text)).value(), text) << name(*kind);
  }
}

TEST(Wire, a_cause_that_cannot_be_is_malformed) {
  const auto number = [](std::uint8_t tag, std::uint64_t value) {
    std::vector<std::byte> field = {std::byte{tag}, std::byte{1}};
    for (int i = 0; i < 8; ++i) field.push_back(static_cast<std::byte>(value >> 8 * i));
    return field;
  };
  const auto bytes = [](std::uint8_t tag, std::size_t count, std::byte last = std::byte{'x'}) {
    std::vector<std::byte> field = {std::byte{tag}, std::byte{2}};
    for (int i = 0; i < 4; ++i) field.push_back(static_cast<std::byte>(count >> 8 * i));
    field.resize(field.size() + count, std::byte{'x'});
    if (count > 0) field.back() = last;
    return field;
  };
  const auto is_ok = [](std::vector<std::byte> fields, const std::vector<std::byte>& more = {}) {
    fields.insert(fields.end(), more.begin(), more.end());
    return decode_text(fields).is_ok();
  };
  const auto last_kind = static_cast<std::uint64_t>(kCauseKindLast);
  EXPECT_TRUE(is_ok(number(3, last_kind)));
  EXPECT_FALSE(is_ok(number(3, last_kind + 1))) << "an unknown kind";
  EXPECT_FALSE(is_ok(number(3, 1 << 8)));
  EXPECT_FALSE(is_ok(bytes(3, 1))) << "a kind is a number";
  for (const std::uint8_t tag : {std::uint8_t{4}, std::uint8_t{7}}) {
    const auto rank = static_cast<std::uint8_t>(tag + 1);
    const auto host = static_cast<std::uint8_t>(tag + 2);
    EXPECT_FALSE(is_ok(number(tag, 3))) << "an unknown role";
    EXPECT_FALSE(is_ok(number(rank, 1))) << "a rank of nobody";
    EXPECT_FALSE(is_ok(bytes(host, 3))) << "a host of nobody";
    EXPECT_FALSE(is_ok(number(tag, 2), number(rank, std::uint64_t{1} << 32)));
    EXPECT_TRUE(is_ok(number(tag, 2), bytes(host, kHostTextBytesMax)));
    EXPECT_FALSE(is_ok(number(tag, 2), bytes(host, kHostTextBytesMax + 1)));
  }
  EXPECT_FALSE(is_ok(number(10, std::uint64_t{1} << 63))) << "a time that would be negative";
  EXPECT_TRUE(is_ok(bytes(11, kDetailBytesMax)));
  EXPECT_FALSE(is_ok(bytes(11, kDetailBytesMax + 1)));
  EXPECT_TRUE(is_ok(bytes(12, kWorkersMax / 8)));
  EXPECT_FALSE(is_ok(bytes(12, kWorkersMax / 8 + 1)));
  EXPECT_FALSE(is_ok(bytes(12, 2, std::byte{0}))) << "an empty byte at the end";
  EXPECT_FALSE(is_ok(bytes(12, 0)));
  EXPECT_TRUE(is_ok(bytes(13, kServersMax / 8)));
  EXPECT_FALSE(is_ok(bytes(13, kServersMax / 8 + 1))) << "a rank that no server has";
}

TEST(Wire, what_a_worker_and_a_shard_decode_is_refused_when_it_is_longer_than_private_memory) {
  // Well-formed: unknown tags are skipped, as many as there are.
  const auto padded = [](std::vector<std::byte> message, std::size_t bytes) {
    std::vector<std::byte> unknown(10, std::byte{0});
    unknown[0] = std::byte{200};
    unknown[1] = std::byte{1};
    while (message.size() + unknown.size() <= bytes) {
      message.insert(message.end(), unknown.begin(), unknown.end());
    }
    return message;
  };
  Declare named;
  named.name = std::string(kTextBytesMax, 'n');
  const auto declare = encode(named);
  Text longest{std::string(kTextBytesMax, 'x'), 1};
  longest.cause = {.kind = CauseKind::kIncomplete,
                   .who = {Role::kWorker, 1, std::string(kHostTextBytesMax, 'h')},
                   .told_by = {Role::kServer, 2, std::string(kHostTextBytesMax, 'i')},
                   .for_ns = 1,
                   .detail = std::string(kDetailBytesMax, 'd'),
                   .missing_workers = {kWorkersMax - 1},
                   .missing_servers = {kServersMax - 1}};
  const auto text = encode(longest);
  EXPECT_EQ(decode_text(text).value(), longest);
  EXPECT_TRUE(decode_declare(padded(declare, kPrivateBytesMax)).is_ok());
  EXPECT_TRUE(decode_text(padded(text, kPrivateBytesMax)).is_ok());
  EXPECT_FALSE(decode_declare(padded(declare, kPrivateBytesMax + 10)).is_ok());
  EXPECT_FALSE(decode_text(padded(text, kPrivateBytesMax + 10)).is_ok());
}

TEST(Wire, every_cut_of_a_message_is_malformed_or_shorter_but_never_read_outside) {
  // Exact-size heap copies, so that a sanitizer sees a read past the end.
  const std::vector<std::byte> whole = encode(sample_roster());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(length));
    const Result<Roster> result = decode_roster(cut);
    if (result.is_ok()) {
      EXPECT_NE(result.value(), sample_roster());
    }
  }
}

TEST(Wire, random_changes_of_bytes_never_do_more_than_change_or_refuse_the_message) {
  Prng prng(1);
  Join placed = sample_join();
  placed.place = sample_place();
  const std::vector<std::vector<std::byte>> seeds = {encode(sample_join()), encode(sample_roster()),
                                                     encode(sample_text()), encode(Hello{}),
                                                     encode(placed)};
  std::size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = seeds[prng.below(seeds.size())];
    for (std::uint64_t changes = 1 + prng.below(4); changes > 0; --changes) {
      bytes[prng.below(bytes.size())] = static_cast<std::byte>(prng.below(256));
    }
    refused += decode_join(bytes).is_ok() ? 0 : 1;
    refused += decode_roster(bytes).is_ok() ? 0 : 1;
    refused += decode_text(bytes).is_ok() ? 0 : 1;
    refused += decode_hello(bytes).is_ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 10'000U);
}

TEST(Wire, a_header_of_another_length_or_kind_is_malformed) {
  const HeaderBytes good = encode(sample_header());
  EXPECT_FALSE(decode_header(std::span(good).first(47)).is_ok());
  for (const int kind : {0, 27, 255}) {
    HeaderBytes bad = good;
    bad[0] = static_cast<std::byte>(kind);
    EXPECT_FALSE(decode_header(bad).is_ok()) << kind;
  }
}

TEST(Wire, words_in_memory_that_their_sender_can_change_are_malformed_and_tensor_bytes_are_not) {
  const auto is_read = [](Kind kind, bool is_shared) {
    Header header = sample_header();
    header.kind = kind;
    const HeaderBytes bytes = encode(header);
    Event event;
    event.kind = Event::Kind::kReceived;
    event.header = bytes;
    event.is_shared = is_shared;
    return header_of(event).is_ok();
  };
  for (const Kind kind : {Kind::kPush, Kind::kAnswer}) EXPECT_TRUE(is_read(kind, true));
  for (const Kind kind : {Kind::kDeclare, Kind::kMismatch, Kind::kMissing, Kind::kWanted}) {
    EXPECT_FALSE(is_read(kind, true));
    EXPECT_TRUE(is_read(kind, false));
  }
  Event event;
  EXPECT_FALSE(header_of(event).is_ok()) << "no header at all";
}

}  // namespace
}  // namespace byteps::wire
