// Way: how connections of a transport come to links of one kind (net/way/link.h): shared memory (net/shm/way.h), RDMA
// (net/rdma/way.h), or another. A transport has an ordered list of them and knows none by its name; the application
// makes them. The two ends of a connection must have the same ways in the same order.
//
// What two ends say to each other on their way to a link are asides (net/way/aside.h). Negotiation (negotiation.h)
// leads the conversation; a way has the words that belong to it, and makes the links:
//
//   connecting side                     accepting side
//   open(): an opening ...............→ answer(): its half of the link, and an answer
//   Attempt::heed(answer)           ←...
//
// Either may find that it cannot be. Then the other side is told, and go_without() decides what becomes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/time.h"
#include "net/endpoint.h"
#include "net/quiet_log.h"
#include "net/way/aside.h"
#include "net/way/link.h"

namespace byteps::way {

// A connection that looks for a way, in one turn.
struct Site {
  const Endpoint& remote;
  int socket = -1;
  TimeNs now = 0;
  QuietLog& log;
};

// What one side says.
struct Words {
  Aside kind;
  std::vector<std::byte> content;
};

struct Step;

// The connecting side, from the opening to the answer.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // The answer of the other side. An error: the connection must end.
  virtual Result<Step> heed(const Site& site, Aside kind, std::span<const std::byte> content) = 0;
};

// What has come of a word. Either `failed`, or the others.
struct Step {
  Status failed;                     // it cannot be
  std::unique_ptr<Attempt> attempt;  // of open()
  std::unique_ptr<Link> link;        // the connection has it from here on
  std::optional<Words> say;
};

// How far a connection has come that must have a link, and has none in time.
enum class Stage { kNothingHeard, kNotAnswered, kNotProven };

// What a transport does for its ways.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // Input at the descriptor, which does not block, is told with this word, once for each time that some comes.
  virtual Status watch_input(int descriptor, std::uint64_t word) = 0;
};

class Way {
 public:
  // In a transport's words: below this.
  static constexpr std::uint64_t kWordsMax = std::uint64_t{1} << 32;

  virtual ~Way() = default;

  // ---- for all connections of the transport

  // Once, before all else. What the way watches with first_word + n, n < kWordsMax, comes to heed_input(n).
  virtual void attach(Watcher& /*watcher*/, std::uint64_t /*first_word*/) {}
  virtual void heed_input(std::uint64_t /*n*/, TimeNs /*now*/, QuietLog& /*log*/) {}
  virtual void begin_poll(TimeNs /*now*/, QuietLog& /*log*/) {}
  // Transport::payload_source().
  virtual std::shared_ptr<BufferSource> payload_source() { return nullptr; }

  virtual std::string_view name() const = 0;  // for messages: "RDMA"
  // This side would use it.
  virtual bool is_wanted() const = 0;
  // A connection without any link is of no use.
  virtual bool is_required() const { return false; }

  // ---- one connection

  // The connecting side's first word, and the accepting side's answer.
  virtual Aside opening() const = 0;
  virtual Aside answering() const = 0;
  virtual Step open(const Site& site) = 0;
  // An error: the connection must end.
  virtual Result<Step> answer(const Site& site, std::span<const std::byte> content) = 0;
  // Both sides have gone over to the link.
  virtual void taken(const Site& site, const Link& link) = 0;
  // What is said of a link that has failed before anybody went over to it.
  virtual Status explained(const Status& failure) const { return failure; }
  // A connection goes on without this way, and says so in the log. must_link: it may not; an error, and it ends.
  // by_them: the other side has found that it cannot be.
  virtual Status go_without(const Site& site, const Status& why, bool must_link, bool by_them) = 0;

  // ---- where it is required: why the connection ends

  virtual Status no_link_in_time(Stage /*stage*/) const { return unlinked_message(); }
  // The other side has sent a message before there was a link.
  virtual Status unlinked_message() const {
    return {Code::kUnsupported, "it sends messages before it has a link"};
  }
};

}  // namespace byteps::way
