// What the ranks of a communicator of the fake's NCCL say to each other: frames on Unix sockets, through a hub in the
// process of rank 0 (nccl_hub.h).
//
//   rank -> hub: Hello(device); then Collective(call, its bytes) and Transfer(call, bytes) as its kernels run; Bye
//   hub -> rank: Welcome(result, text); Result(bytes) of a collective, Transfer as it came, Lost(text) when another
//                rank is gone before its Bye, Closed when all have said Bye
//
// Collectives are numbered by each rank in the order in which it issues them, transfers by each pair of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/fake_nccl.h"

namespace fake_nccl {

enum class Kind : std::uint32_t {
  kHello,
  kWelcome,
  kCollective,
  kResult,
  kTransfer,
  kLost,
  kBye,
  kClosed,
};

enum class Op : std::uint32_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kReceive,
};

// What ranks must have alike.
struct Call {
  Op op = Op::kAllReduce;
  NcclType type = kNcclFloat32;
  NcclOperator reduction = kNcclSum;
  std::int32_t root = 0;  // of a transfer: who gets it
  std::uint64_t count = 0;
  bool operator==(const Call&) const = default;
};
std::string text_of(const Call&);

struct Frame {
  Kind kind = Kind::kHello;
  std::int32_t rank = 0;  // who says it
  std::uint32_t result = 0;
  std::int32_t device = 0;  // as the machine counts
  std::int32_t ranks = 0;
  Call call{};
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  // that follow
};

using Bytes = std::vector<char>;

// A socket, and what came of frames that are not whole yet or could not be written yet. Of one thread.
class Line {
 public:
  explicit Line(int socket) : socket_(socket) {}
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  int socket() const { return socket_; }
  void say(Frame frame, const Bytes& bytes);
  void say(Frame frame, const std::string& text) { say(frame, Bytes(text.begin(), text.end())); }
  bool has_unsaid() const { return said_ < unsaid_.size(); }
  // Reads and writes what can be without waiting. False: the other end is gone.
  bool move();
  // The next whole frame, if there is one.
  bool next(Frame* frame, Bytes* bytes);

 private:
  bool hear();
  bool flush();

  const int socket_;
  Bytes heard_;
  std::size_t taken_ = 0;  // of heard_
  Bytes unsaid_;
  std::size_t said_ = 0;  // of unsaid_
};

// Of elements.
std::size_t bytes_of(NcclType type);  // 0: a type that the fake does not know
// to[i] = to[i] op from[i], each rounded to the type.
void reduce(NcclType type, NcclOperator op, char* to, const char* from, std::size_t count);
// at[i] = at[i] * *factor
void scale(NcclType type, char* at, const char* factor, std::size_t count);
// The average's own part: before the sum where the type is of floating point, and after it otherwise.
void scale_before_average(NcclType type, char* at, std::size_t count, int ranks);
void divide_after_average(NcclType type, char* at, std::size_t count, int ranks);

}  // namespace fake_nccl
