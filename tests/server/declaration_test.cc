#include "server/declaration.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(Declaration, a_name_in_a_message_cannot_disturb_the_terminal) {
  EXPECT_EQ(quoted_name("plain"), "\"plain\"");
  EXPECT_EQ(quoted_name("a\x1b[2J\nb"), "\"a?[2J?b\"");
}

TEST(Declaration, a_long_name_is_cut_between_characters) {
  std::string name(255, 'a');
  name += "\xc3\xa4 and more";  // a two-byte letter at the place of the cut
  EXPECT_EQ(quoted_name(name), "\"" + std::string(255, 'a') + "...\"");
}

TEST(Declaration, two_names_with_one_key_are_told_to_rename) {
  wire::Declare a;
  a.name = "a";
  wire::Declare b;
  b.name = "b";
  EXPECT_FALSE(same_tensor(a, b));
  EXPECT_EQ(difference_text(WorkerRank(0), a, WorkerRank(1), b),
            "the names of tensor \"a\" (worker 0) and tensor \"b\" (worker 1) have the same key. "
            "Rename one of them on all ranks");
}

}  // namespace
}  // namespace byteps
