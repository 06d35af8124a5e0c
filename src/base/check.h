// CHECK: always on, for bugs of ours only. Never for input, peers or the operating system.
//
//   CHECK(a == b) << "part " << a << " of " << b;
//   CHECK_EQ(sent_bytes, part_bytes) << "after the last frame";
//
// Prints file, line, the expression, both values, the message, and aborts.
#pragma once

#include <sstream>

namespace byteps {

// Collects the message; its destructor prints and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* expression);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives both arms of the conditional in CHECK the type void.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace byteps

#define CHECK(condition) \
  (condition)            \
      ? (void)0          \
      : ::byteps::CheckVoidify() & ::byteps::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define CHECK_BYTEPS_OP(a, op, b) CHECK((a)op(b)) << "(" << (a) << " against " << (b) << ") "
#define CHECK_EQ(a, b) CHECK_BYTEPS_OP(a, ==, b)
#define CHECK_NE(a, b) CHECK_BYTEPS_OP(a, !=, b)
#define CHECK_LE(a, b) CHECK_BYTEPS_OP(a, <=, b)
#define CHECK_LT(a, b) CHECK_BYTEPS_OP(a, <, b)
#define CHECK_GE(a, b) CHECK_BYTEPS_OP(a, >=, b)
#define CHECK_GT(a, b) CHECK_BYTEPS_OP(a, >, b)
