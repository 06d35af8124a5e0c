// The queue of what a connection sends.
#include <vector>

#include <gtest/gtest.h>

#include "net/frame/outbox.h"

namespace byteps::frame {
namespace {

using Bytes = std::vector<std::byte>;

std::size_t frame_bytes(std::size_t payload_bytes) {
  return kPrefixBytes + 8 + payload_bytes + kTrailerBytes;
}

TEST(Outbox, whole_frames_end_at_the_first_frame_that_reaches_the_bytes_wanted) {
  const Bytes header(8);
  const Bytes small(100);
  const Bytes large(10'000);
  Outbox outbox;
  EXPECT_EQ(outbox.whole_frames(1000), 0U);
  outbox.push({.header = header, .payload = small});
  outbox.push({.header = header, .payload = small});
  outbox.push({.header = header, .payload = large});
  outbox.push({.header = header, .payload = large});
  EXPECT_EQ(outbox.whole_frames(1), frame_bytes(100));
  EXPECT_EQ(outbox.whole_frames(frame_bytes(100) + 1), 2 * frame_bytes(100));
  EXPECT_EQ(outbox.whole_frames(1000), 2 * frame_bytes(100) + frame_bytes(10'000));
  EXPECT_EQ(outbox.whole_frames(1 << 20), outbox.unsent_bytes()) << "all there is";
}

TEST(Outbox, whole_frames_count_only_what_is_left_of_the_first) {
  const Bytes header(8);
  const Bytes large(10'000);
  Outbox outbox;
  outbox.push({.header = header, .payload = large});
  outbox.push({.header = header, .payload = large});
  std::vector<iovec> entries(16);
  std::size_t bytes = 0;
  outbox.gather(entries, 4000, bytes);
  ASSERT_EQ(bytes, 4000U);
  outbox.advance(bytes);
  EXPECT_EQ(outbox.whole_frames(1), frame_bytes(10'000) - 4000);
  EXPECT_EQ(outbox.whole_frames(7000), 2 * frame_bytes(10'000) - 4000);
}

}  // namespace
}  // namespace byteps::frame
