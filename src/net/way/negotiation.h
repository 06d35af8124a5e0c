// Negotiation: how one connection passes from its socket to a link (net/way/link.h). Socketless: asides go in, asides
// come out into the outbox.
//
//   connecting side                              accepting side
//   the opening of the first way that it wants ..→
//   ←........................ that way's answer
//   switch: the last frame on the
//     socket in this direction ...................→ reads from the link from here on
//   ←...................... switch, the same
//
// The connecting side goes over when its link is proven, which may take more than the answer; until then messages go by
// the socket. Either side may decline, with the reason, where it would otherwise go on; then the connecting side may go
// on with the next way, and at the end all stays on the socket. Each direction has one point before which everything is
// on the socket and behind which everything is in the link, so order is kept. Behind it the socket brings only
// farewells and the connection's end.
//
// Where a way is required, a connection is not up for its owner before it has a link, and ends if it gets none.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "net/way/link.h"
#include "net/way/way.h"

namespace byteps::way {

// What becomes of the links that a negotiation makes.
class LinkKeeper {
 public:
  virtual ~LinkKeeper() = default;
  // The connection has it from here on: what wakes it is watched, and it has its turns. An error: it was not taken.
  virtual Status keep(std::unique_ptr<Link> link) = 0;
  // It is dropped; events of this poll may look into it.
  virtual void retire() = 0;
};

class Negotiation {
 public:
  using Ways = std::span<const std::unique_ptr<Way>>;
  enum class Side { kConnecting, kAccepting };

  // The queues are the connection's.
  Negotiation(Side side, Ways ways, frame::Outbox& outbox, frame::Inbox& inbox)
      : side_(side), ways_(ways), outbox_(outbox), inbox_(inbox) {}

  // For all that follows, an error: the connection must end.

  // The connection is authenticated.
  Status begin(const Site& site, LinkKeeper& keeper);
  // What the other side says: never empty.
  Status heed(const Site& site, LinkKeeper& keeper, std::span<const std::byte> aside);
  // The link has failed, and nobody has gone over to it.
  Status heed_failure(const Site& site, LinkKeeper& keeper, const Status& failure);

  // This side can go over to the link, and does.
  bool may_switch() const;
  void switch_over();

  // The connection is of no use without a link.
  bool must_link() const { return required_ != nullptr; }
  // For its owner it is up.
  bool is_settled() const { return !must_link() || (link_ != nullptr && link_->reads()); }
  // While it is not settled: what it ends with.
  Status no_link_in_time() const;
  Status unlinked_message() const { return required_->unlinked_message(); }

 private:
  Status try_next(const Site& site, LinkKeeper& keeper);
  // Takes what a way has come to. False: it has failed.
  bool take(Step& step, LinkKeeper& keeper);
  Status heed_opening(const Site& site, LinkKeeper& keeper, std::size_t index,
                      std::span<const std::byte> content);
  Status heed_answer(const Site& site, LinkKeeper& keeper, Aside kind,
                     std::span<const std::byte> content);
  Status heed_decline(const Site& site, LinkKeeper& keeper, std::span<const std::byte> content);
  Status heed_switch(const Site& site);
  void say(Aside kind, std::span<const std::byte> content);
  void decline(const Status& why);
  void drop(LinkKeeper& keeper);
  bool has_declined() const { return declined_ != nullptr; }
  bool connects() const { return side_ == Side::kConnecting; }

  const Side side_;
  const Ways ways_;
  frame::Outbox& outbox_;
  frame::Inbox& inbox_;

  const Way* required_ = nullptr;
  Way* current_ = nullptr;            // that attempt_ and link_ are of
  const Way* declined_ = nullptr;     // the last one that this side has declined
  std::size_t next_ = 0;              // the first way not tried yet, or not heard of
  Link* link_ = nullptr;              // the connection's
  std::unique_ptr<Attempt> attempt_;  // connecting: the answer is waited for
};

}  // namespace byteps::way
