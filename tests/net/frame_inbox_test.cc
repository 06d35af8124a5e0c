// How the Inbox asks for bytes: in batches, and with how much memory for what was only promised.
// That it gets the messages right is tested through the transport (tcp_transport_test, tcp_hostile_test,
// conformance).
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "net/frame/inbox.h"
#include "tests/net/tcp_peer.h"

namespace byteps::frame {
namespace {

constexpr std::size_t kBatchBytes = 64 << 10;

class InboxTest : public testing::Test {
 protected:
  void SetUp() override { staging_.begin_poll(); }

  // One read of at most what the inbox asks for, from the front of `stream`, and the parse after it.
  void feed(std::span<const std::byte>& stream) {
    const Inbox::Places places = inbox_.places(staging_, kBatchBytes);
    std::size_t bytes = 0;
    for (int i = 0; i < places.count && !stream.empty(); ++i) {
      const iovec& entry = places.entries[static_cast<std::size_t>(i)];
      const std::size_t piece = std::min(entry.iov_len, stream.size());
      std::memcpy(entry.iov_base, stream.data(), piece);
      stream = stream.subspan(piece);
      bytes += piece;
    }
    inbox_.received(bytes, places, staging_);
    EventSpan out(events_);
    EXPECT_TRUE(inbox_.parse(PeerId(1), staging_, out).is_ok());
    received_ += out.count();
    staging_.begin_poll();
  }

  Staging staging_{kBatchBytes};
  Inbox inbox_;
  std::vector<Event> events_ = std::vector<Event>(64);
  std::size_t received_ = 0;
};

TEST_F(InboxTest, many_small_payloads_are_read_with_one_call) {
  Bytes bytes;
  for (int i = 0; i < 200; ++i) append(bytes, numbered_frame(1024, 0));
  std::span<const std::byte> stream = bytes;
  int reads = 0;
  for (; !stream.empty(); ++reads) feed(stream);
  EXPECT_EQ(received_, 200U);
  EXPECT_LE(reads, 5) << "200 KiB in batches of 64 KiB";
}

TEST_F(InboxTest, memory_for_a_promised_payload_grows_with_what_has_come) {
  const Bytes message = numbered_frame(kPayloadBytesMax, 0);
  std::span<const std::byte> stream = message;
  std::size_t have = 0;
  while (!stream.empty()) {
    Inbox::Places places = inbox_.places(staging_, kPayloadBytesMax);
    // A buffer of 64 KiB at first, later at most as much again as is here, and what rounding adds.
    EXPECT_LE(places.entries[0].iov_len, std::max(2 * kBatchBytes, 2 * have + kBatchBytes));
    feed(stream);
    have = message.size() - stream.size();
  }
  EXPECT_EQ(received_, 1U);
}

}  // namespace
}  // namespace byteps::frame
