// Status and Result: how something that may go wrong in operation says so.
//
// Three kinds of failure have three means. A bug of ours: CHECK (base/check.h). Something that
// happens in operation: Status or Result<T>, from here. A peer that misbehaves or is gone: an event
// that carries a Status. A code says what the caller can do about it; the message names the thing
// (tensor, rank, address, variable) and the remedy; where a job or an operation ends, or somebody is
// refused, a Cause says the same as facts (cause.h). The function that first decides which error it
// is writes message and cause; those above pass them on, in more words with in_words().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/cause.h"
#include "base/check.h"

namespace byteps {

enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // fix the call
  kAgain = 2,            // wait, then call again
  kTimeout = 3,          // it took longer than allowed
  kDisconnected = 4,     // the peer is gone: rejoin, or end
  kUnsupported = 5,      // choose another way
  kSystem = 6,           // the operating system refused; errno is in the message
  kMismatch = 7,         // ranks disagree about a tensor: make them agree
  kCancelled = 8,        // ended by leave(), or because another part of the job failed
};

// The name of a code without its k, for example "InvalidArgument".
const char* name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  Status(Code code, std::string message, Cause cause)
      : Status(code, std::move(message), std::make_shared<const Cause>(std::move(cause))) {}

  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  bool is(Code code) const { return code_ == code; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "Timeout: scheduler at 10.0.0.1:9000 did not answer ..."; "Ok" for success.
  std::string text() const;

  // kOther, of nobody, when there is nothing but the message.
  const Cause& cause() const;
  bool is_because_of(CauseKind kind) const { return cause().kind == kind; }
  // The same code and cause.
  Status in_words(std::string message) const { return {code_, std::move(message), cause_}; }

 private:
  Status(Code code, std::string message, std::shared_ptr<const Cause> cause)
      : code_(code), message_(std::move(message)), cause_(std::move(cause)) {}

  Code code_ = Code::kOk;
  std::string message_;
  std::shared_ptr<const Cause> cause_;  // shared by copies: many operations end for one reason
};

// kSystem with "what: strerror(error_number)"; the cause is what this process has run out of.
Status system_error(std::string what, int error_number);

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    CHECK(!status_.is_ok()) << "a Result without a value needs an error";
  }

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    CHECK(is_ok()) << status_.text();
    return *value_;
  }
  const T& value() const& {
    CHECK(is_ok()) << status_.text();
    return *value_;
  }
  T&& value() && {
    CHECK(is_ok()) << status_.text();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace byteps
