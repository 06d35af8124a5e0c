#include "tests/gpu/nccl_wire.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "kernels/half.h"

namespace fake_nccl {

std::string text_of(const Call& call) {
  constexpr std::array kNames{"ncclAllReduce",     "ncclReduce",   "ncclBroadcast", "ncclAllGather",
                              "ncclReduceScatter", "ncclAlltoAll", "ncclSend",      "ncclRecv"};
  return std::string(kNames.at(static_cast<std::size_t>(call.op))) + "(count " +
         std::to_string(call.count) + ", type " + std::to_string(call.type) + ", op " +
         std::to_string(call.reduction) + ", root " + std::to_string(call.root) + ")";
}

// ---- lines

Line::~Line() {
  ::close(socket_);
}

void Line::say(Frame frame, const Bytes& bytes) {
  frame.bytes = bytes.size();
  const auto* const head = reinterpret_cast<const char*>(&frame);
  unsaid_.insert(unsaid_.end(), head, head + sizeof frame);
  unsaid_.insert(unsaid_.end(), bytes.begin(), bytes.end());
}

bool Line::move() {
  return flush() && hear();
}

bool Line::flush() {
  while (has_unsaid()) {
    const ssize_t sent = ::send(socket_, unsaid_.data() + said_, unsaid_.size() - said_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    said_ += static_cast<std::size_t>(sent);
  }
  unsaid_.clear();
  said_ = 0;
  return true;
}

bool Line::hear() {
  constexpr std::size_t kChunk = std::size_t{1} << 18;
  heard_.erase(heard_.begin(), heard_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  for (;;) {
    const std::size_t before = heard_.size();
    heard_.resize(before + kChunk);
    const ssize_t got = ::recv(socket_, heard_.data() + before, kChunk, MSG_DONTWAIT);
    heard_.resize(before + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
  }
}

bool Line::next(Frame* frame, Bytes* bytes) {
  const std::size_t there = heard_.size() - taken_;
  if (there < sizeof *frame) return false;
  std::memcpy(frame, heard_.data() + taken_, sizeof *frame);
  if (there < sizeof *frame + frame->bytes) return false;
  const auto begin = heard_.begin() + static_cast<std::ptrdiff_t>(taken_ + sizeof *frame);
  bytes->assign(begin, begin + static_cast<std::ptrdiff_t>(frame->bytes));
  taken_ += sizeof *frame + frame->bytes;
  return true;
}

// ---- elements

namespace {

struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value) : bits(byteps::half_of_float(value)) {}
  explicit operator float() const { return byteps::float_of_half(bits); }
};

struct Bfloat16 {
  std::uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) : bits(byteps::bfloat_of_float(value)) {}
  explicit operator float() const { return byteps::float_of_bfloat(bits); }
};

template <typename T>
struct Wide {
  using type = T;
};
template <>
struct Wide<Float16> {
  using type = float;
};
template <>
struct Wide<Bfloat16> {
  using type = float;
};

// Calls function(T()) with the type.
template <typename Function>
void with_type(NcclType type, const Function& function) {
  switch (type) {
    case kNcclInt8:
      return function(std::int8_t());
    case kNcclUint8:
      return function(std::uint8_t());
    case kNcclInt32:
      return function(std::int32_t());
    case kNcclUint32:
      return function(std::uint32_t());
    case kNcclInt64:
      return function(std::int64_t());
    case kNcclUint64:
      return function(std::uint64_t());
    case kNcclFloat16:
      return function(Float16());
    case kNcclFloat32:
      return function(float());
    case kNcclFloat64:
      return function(double());
    case kNcclBfloat16:
      return function(Bfloat16());
  }
}

template <typename T>
T loaded(const char* at, std::size_t i) {
  T value;
  std::memcpy(&value, at + i * sizeof value, sizeof value);
  return value;
}

template <typename T>
T combined(NcclOperator op, T a, T b) {
  switch (op) {
    case kNcclProd:
      return static_cast<T>(a * b);
    case kNcclMax:
      return a < b ? b : a;
    case kNcclMin:
      return b < a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

template <typename T, typename Function>
void change(char* at, std::size_t count, const Function& function) {
  using W = typename Wide<T>::type;
  for (std::size_t i = 0; i < count; ++i) {
    const T result = static_cast<T>(static_cast<W>(function(static_cast<W>(loaded<T>(at, i)), i)));
    std::memcpy(at + i * sizeof result, &result, sizeof result);
  }
}

bool is_floating(NcclType type) {
  return type == kNcclFloat16 || type == kNcclFloat32 || type == kNcclFloat64 ||
         type == kNcclBfloat16;
}

}  // namespace

std::size_t bytes_of(NcclType type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto one) { bytes = sizeof one; });
  return bytes;
}

void reduce(NcclType type, NcclOperator op, char* to, const char* from, std::size_t count) {
  with_type(type, [&]<typename T>(T) {
    using W = typename Wide<T>::type;
    change<T>(to, count, [&](W value, std::size_t i) {
      return combined<W>(op, value, static_cast<W>(loaded<T>(from, i)));
    });
  });
}

void scale(NcclType type, char* at, const char* factor, std::size_t count) {
  with_type(type, [&]<typename T>(T) {
    using W = typename Wide<T>::type;
    const W by = static_cast<W>(loaded<T>(factor, 0));
    change<T>(at, count, [&](W value, std::size_t) { return static_cast<W>(value * by); });
  });
}

void scale_before_average(NcclType type, char* at, std::size_t count, int ranks) {
  if (!is_floating(type)) return;
  with_type(type, [&]<typename T>(T) {
    using W = typename Wide<T>::type;
    const W by = static_cast<W>(1) / static_cast<W>(ranks);
    change<T>(at, count, [&](W value, std::size_t) { return static_cast<W>(value * by); });
  });
}

void divide_after_average(NcclType type, char* at, std::size_t count, int ranks) {
  if (is_floating(type)) return;
  with_type(type, [&]<typename T>(T) {
    using W = typename Wide<T>::type;
    change<T>(at, count,
              [&](W value, std::size_t) { return static_cast<W>(value / static_cast<W>(ranks)); });
  });
}

}  // namespace fake_nccl
