#include "base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace byteps {

const char* name(Code code) {
  switch (code) {
    case Code::kOk:
      return "Ok";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kAgain:
      return "Again";
    case Code::kTimeout:
      return "Timeout";
    case Code::kDisconnected:
      return "Disconnected";
    case Code::kUnsupported:
      return "Unsupported";
    case Code::kSystem:
      return "System";
    case Code::kMismatch:
      return "Mismatch";
    case Code::kCancelled:
      return "Cancelled";
  }
  return "Unknown";
}

std::string Status::text() const {
  if (is_ok()) return "Ok";
  return std::string(name(code_)) + ": " + message_;
}

const Cause& Status::cause() const {
  static const Cause kNone;
  return cause_ == nullptr ? kNone : *cause_;
}

Status system_error(std::string what, int error_number) {
  char buffer[128];
  const char* reason = strerror_r(error_number, buffer, sizeof buffer);
  std::string text = std::move(what) + ": " + reason;
  const bool no_descriptors = error_number == EMFILE || error_number == ENFILE;
  if (!no_descriptors && error_number != ENOMEM) return {Code::kSystem, std::move(text)};
  const CauseKind kind = no_descriptors ? CauseKind::kNoDescriptors : CauseKind::kNoMemory;
  return {Code::kSystem, std::move(text), {.kind = kind, .detail = reason}};
}

CheckFailure::CheckFailure(const char* file, int line, const char* expression) {
  stream_ << file << ":" << line << ": CHECK(" << expression << ") failed ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace byteps
