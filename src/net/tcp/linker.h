// Linker: the ways of a transport and the links that its connections have by them: what is said about them, whose turn
// it is, and what went through. It knows no way by its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/time.h"
#include "net/quiet_log.h"
#include "net/tcp/connection.h"
#include "net/tcp/reactor.h"
#include "net/transport.h"
#include "net/way/way.h"

namespace byteps::tcp {

class Linker {
 public:
  using Ways = std::vector<std::unique_ptr<way::Way>>;

  Linker(Ways ways, Reactor& reactor, QuietLog& log);

  // ---- one connection. An error: it must end

  // It is up on its socket, and has so long to get a link, if it must have one.
  Status begin(Connection& connection, TimeNs limit_ns);
  Status heed(Connection& connection, std::span<const std::byte> aside);
  // Its link has failed before anybody went over to it.
  Status heed_failure(Connection& connection, const Status& failure);
  // It goes on without its link, or ends.
  void drop(Connection& connection);
  // What is on its way in the link goes on as part of another connection.
  void hand_over(Connection& from, Connection& to);

  // ---- all of them

  void begin_poll();
  // Moves what is to be sent.
  void serve();
  // Before sleeping; true when there is something to do already. disarm() must follow. is_patient: see Waiter::doze().
  bool arm(bool is_patient);
  void disarm();
  // A word of Reactor::way_word().
  void heed_way(std::uint64_t word);

  Transport::Ways moved() const;
  Transport::Ways moved_outbound() const;  // see Transport
  std::shared_ptr<BufferSource> payload_source() const;

 private:
  class Keeper;
  // A connection that has a link. Whether it is outbound is not asked of what lingers of it (hand_over()).
  struct Linked {
    Connection* connection = nullptr;
    bool is_outbound = false;
  };
  std::vector<Linked>::iterator find(const Connection& connection);
  void retire(Connection& connection);
  way::Site site_of(const Connection& connection);
  Status settle(Connection& connection, bool was_settled, Status status);

  const Ways ways_;
  Reactor& reactor_;
  QuietLog& log_;
  Transport::Ways past_;  // of links that are gone
  Transport::Ways past_outbound_;
  std::vector<Linked> linked_;                         // in the order they got a link
  std::vector<std::unique_ptr<way::Link>> old_links_;  // events of this poll may look into them
};

}  // namespace byteps::tcp
