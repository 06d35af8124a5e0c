#include "base/buffer.h"

#include <cstdint>
#include <new>

#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(BufferPool, gives_aligned_memory_of_at_least_the_size_asked_for) {
  BufferPool pool;
  for (const std::size_t bytes : {0UL, 1UL, 64UL, 65UL, 1000UL, 65536UL}) {
    const BufferRef ref = pool.take(bytes);
    EXPECT_GE(ref.span().size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ref.span().data()) % kBufferAlignment, 0U);
  }
}

TEST(BufferPool, takes_a_buffer_back_only_when_its_last_holder_is_gone) {
  BufferPool pool;
  BufferRef first = pool.take(128);
  BufferRef second = first;
  first = BufferRef();
  EXPECT_EQ(pool.lent_bytes(), 128U);
  second = BufferRef();
  EXPECT_EQ(pool.lent_bytes(), 0U);
  EXPECT_EQ(pool.idle_bytes(), 128U);
}

TEST(BufferPool, reuses_what_came_back) {
  BufferPool pool;
  const std::byte* memory = pool.take(100).span().data();
  EXPECT_EQ(pool.take(128).span().data(), memory);
}

TEST(BufferPool, frees_what_lies_idle_when_asked_or_when_there_is_no_memory) {
  BufferPool pool;
  const BufferRef lent = pool.take(64);
  (void)pool.take(128);
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), 0U);
  EXPECT_EQ(pool.lent_bytes(), 64U);
  (void)pool.take(128);
  EXPECT_EQ(pool.idle_bytes(), 128U);
  EXPECT_THROW((void)pool.take(std::size_t{1} << 62), std::bad_alloc);
  EXPECT_EQ(pool.idle_bytes(), 0U);
  EXPECT_EQ(pool.lent_bytes(), 64U);
}

TEST(BufferPoolDeathTest, ending_while_a_buffer_is_lent_is_a_bug) {
  EXPECT_DEATH(
      {
        BufferRef outlives;
        BufferPool pool;
        outlives = pool.take(1);
      },
      "still lent");
}

}  // namespace
}  // namespace byteps
