// TcpTransport: the Transport over TCP, one per Actor, and what its Runner sleeps on.
//
// Non-blocking sockets and one edge-triggered epoll descriptor. No thread, no clock: time comes with
// poll().
//
// Sending. A message's frame head is copied into a slot of the connection's Outbox, its payload is not:
// sendmsg(2) gathers many frames straight from lent memory. Messages wait for the next poll().
// kSent comes when the last byte is the kernel's.
//
// Receiving. What comes is read in large batches into staging memory, and payloads are given out as views of it
// (net/frame/inbox.h).
//
// Links. Where both ends of a connection have another way than the socket, such as memory that they share, its messages
// go by that (net/way/way.h), and the socket stays for what it knows best: who is there, and until when. Which ways
// there are is for the application to say.
//
// A poll() does bounded work: about read_batch_bytes per connection and in all, and as many events as the span
// holds. Connections take turns. What is left makes wait() return at once.
//
// Who does what: Reactor sleeps and knows whose turn it is; Listener accepts, Dialler connects, and Greeter has the two
// sides prove who they are; Linker looks after links, Intake makes events of what comes, Closer ends connections. Here
// is the order of a poll, and what the owner's calls do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/epoll.h>

#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "net/frame/events.h"
#include "net/frame/staging.h"
#include "net/quiet_log.h"
#include "net/tcp/closer.h"
#include "net/tcp/connections.h"
#include "net/tcp/dialler.h"
#include "net/tcp/greeter.h"
#include "net/tcp/intake.h"
#include "net/tcp/linker.h"
#include "net/tcp/listener.h"
#include "net/tcp/options.h"
#include "net/tcp/reactor.h"
#include "net/tcp/strangers.h"
#include "net/transport.h"
#include "net/way/way.h"

namespace byteps {

class TcpTransport final : public ProcessTransport, private Waiter {
 public:
  using Ways = Transport::Ways;

  // ways: by which its connections may have links, those to try first in front.
  // kSystem: no descriptor, or the address is taken (the text says which). kInvalidArgument: a bad
  // endpoint or limit.
  static Result<std::unique_ptr<TcpTransport>> create(TcpOptions options,
                                                      std::vector<std::unique_ptr<way::Way>> ways,
                                                      Log log);
  // Closes everything; lent payloads are the lender's again. No events.
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  Waiter& waiter() override { return *this; }
  std::vector<Endpoint> listening() const override { return listener_.listening(); }
  // What those who connect from now on are told; its job_id and version are required of them.
  void set_self(const Hello& self) override { options_.self = self; }
  void expect_peers(std::size_t count) override { listener_.expect_peers(count); }

  // An address in text begins at once, and so does a host name whose addresses are known (net/name_book.h); another is
  // looked up first, by threads of its own. A name that is not known ends in kDown, so that callers can try again.
  Result<PeerId> connect(const Endpoint& to, const Hello& self) override;
  bool is_naming(PeerId peer) const override;
  Status send(PeerId peer, const Outgoing& message) override;
  std::size_t capacity_bytes(PeerId peer) const override;
  TimeNs round_trip_ns(PeerId peer) const override;
  Ways ways() const override { return linker_.moved(); }
  Ways outbound_ways() const override { return linker_.moved_outbound(); }
  // That of a way which sends from it without a copy.
  std::shared_ptr<BufferSource> payload_source() override { return linker_.payload_source(); }
  std::size_t poll(TimeNs now, std::span<Event> events) override;
  TimeNs next_deadline() const override;
  void close(PeerId peer, Status reason) override;

 private:
  TcpTransport(TcpOptions options, std::vector<std::unique_ptr<way::Way>> ways, Log log);
  Status open();

  void wait(TimeNs timeout_ns) override { doze(timeout_ns, 0); }
  void doze(TimeNs timeout_ns, TimeNs patience_ns) override;
  void wake() override { reactor_.wake(); }
  bool work_is_waiting() const;

  // The steps of a poll. take_notes() makes no event and destroys nothing.
  void take_notes(std::span<const epoll_event> ready);
  void expire_deadlines();
  void expire(tcp::Connection& connection);
  void flush_dirty();
  // One connection's turn: gives out its events and reads from it. May destroy it.
  void serve(tcp::Connection& connection, frame::EventSpan& out);
  void serve_handshake(tcp::Connection& connection);
  void serve_ended(tcp::Connection& connection, frame::EventSpan& out);

  TcpOptions options_;  // constant after construction but for self, see set_self()
  QuietLog log_;
  frame::Staging staging_;
  tcp::Reactor reactor_;
  tcp::Connections connections_;
  tcp::Strangers strangers_;
  tcp::Linker linker_;
  tcp::Closer closer_;
  tcp::Listener listener_;
  tcp::Greeter greeter_;
  tcp::Dialler dialler_;
  tcp::Intake intake_;
};

}  // namespace byteps
