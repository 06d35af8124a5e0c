// TcpTransport: the Transport over TCP, one per Actor, and what its Runner sleeps on.
//
// Non-blocking sockets and one edge-triggered epoll descriptor. No thread, no clock: time comes with
// poll().
//
// Sending. A message's frame head is copied into a slot of the connection's Outbox, its payload is not:
// sendmsg(2) gathers many frames straight from lent memory. Messages wait for the next poll(), or for
// write_batch_bytes of them. kSent comes when the last byte is the kernel's.
//
// Receiving. Two ways, chosen per connection by what comes (net/frame/inbox.h). Payloads without a landing
// are read in large batches into staging memory and given out as views of it. Larger payloads with a
// landing are received directly into the landing, one system call for each.
//
// Shared memory. Where both ends of a connection want it and are on one host, its messages go through memory that the
// two processes share (net/shm/link.h), and the socket stays for what it knows best: who is there, and until when.
// RDMA, where it is wanted and there, takes the same place between hosts (net/rdma/link.h).
//
// A poll() does bounded work: about read_batch_bytes of views, read_batch_bytes of landed payload per
// connection, and as many events as the span holds. Connections take turns. What is left makes wait()
// return at once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/job_key.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "loop/actor.h"
#include "net/address.h"
#include "net/auth.h"
#include "net/frame/staging.h"
#include "net/name_book.h"
#include "net/quiet_log.h"
#include "net/rdma/options.h"
#include "net/tcp/resolver.h"
#include "net/transport.h"

namespace byteps {

namespace shm {
struct Meeting;
}

namespace rdma {
class Device;
class Link;
class Slabs;
struct Verbs;
}  // namespace rdma

namespace frame {
class EventSpan;
}  // namespace frame

namespace way {
enum class Aside : std::uint8_t;
class Link;
}  // namespace way

namespace tcp {
class Connection;
}  // namespace tcp

struct TcpOptions {
  // Where to accept connections; none: only connects. Port 0: any free one, see listening(). Host "": all
  // addresses of the machine, IPv6 and IPv4 on one socket where there is IPv6; "0.0.0.0": all of IPv4;
  // "::": all of IPv6; otherwise an address or a host name, all of whose addresses are served.
  std::vector<Endpoint> listen;
  // Said to those who connect to us. They must have our version and our job_id, or are refused.
  Hello self;
  // Both sides of each connection prove that they hold it. Empty: anyone with our job_id may come.
  JobKey key;
  // Only loopback addresses are listened at and connected to; others are kInvalidArgument. And only connections between
  // processes of one user come up (net/tcp/owner.h). For jobs without a key.
  bool loopback_only = false;
  TimeNs connect_timeout_ns = 3 * kSecond;  // from connect() until the other side has proved itself
  TimeNs handshake_timeout_ns = 5 * kSecond;  // the same, from accepting a connection
  // A connection ends when the other machine's kernel has acknowledged nothing for so long, or the other process has
  // left a full window unread while more waits for it, or, when nothing is said, the other machine's kernel
  // has answered no question whether it is there (tcp(7): TCP_USER_TIMEOUT, SO_KEEPALIVE, the latter in full seconds).
  TimeNs unreachable_ns = 1500 * kMillisecond;
  TimeNs linger_ns = 1 * kSecond;  // how long a closed connection may take to send its tail
  // How long the look-up of a host name may take, before connect_timeout_ns begins to count.
  TimeNs look_up_timeout_ns = Transport::kLookUpNs;
  // Looks up a host name; on other threads, where it may block. Null: getaddrinfo(3).
  tcp::Resolver::LookUp look_up;
  std::size_t connections_max =
      kConnectionsMax;  // of all kinds, beside expect_peers(); more are turned away
  // Of these, accepted ones that have not named the job; and as many that have, and have not proved that they belong to
  // it. Each also beside expect_peers(): all members may come at once. For another one the oldest of its kind is
  // dropped, so a crowd of strangers, who hold all they may, does not keep members out. (Were it the newest, whoever
  // holds all places would keep everyone out with no further effort.)
  std::size_t strangers_max = kStrangersMax;
  // While there are members, more connections than may be strangers are accepted at this pace only: what a stranger
  // costs is their time. The others wait at the kernel.
  std::size_t accepts_per_second = 1000;
  std::size_t window_bytes =
      kWindowBytes;  // per connection: sent but no kSent yet; above it send() says kAgain
  std::size_t read_batch_bytes = 256 << 10;   // at least 4 KiB
  std::size_t write_batch_bytes = 128 << 10;  // per system call
  // Shared memory, by a connection and each of its directions: a power of two from 64 KiB to 64 MiB. The accepting side
  // makes it, and its value is that of the connection. 0: none is made, and none of others is used.
  std::size_t shared_ring_bytes = 0;
  // RDMA, for connections that do not share memory. rdma.unreachable_ns is taken from above.
  rdma::Options rdma;
  const rdma::Verbs* verbs = nullptr;  // null: the library's, opened when wanted
  // Says at the level INFO which way connections go where RDMA is wanted, once for each way and reason. Of the
  // transports of a process that have the same peers one is enough; the others say it at the level DEBUG.
  bool tells_ways = true;
};

class TcpTransport final : public Transport, public Waiter {
 public:
  // kSystem: no descriptor, or the address is taken (the text says which). kInvalidArgument: a bad
  // endpoint or limit.
  static Result<std::unique_ptr<TcpTransport>> create(TcpOptions options, Log log);
  // Closes everything; lent payloads are the lender's again, landings are no longer written. No events.
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // Where we listen, with the real ports.
  std::vector<Endpoint> listening() const;
  // What those who connect from now on are told; its job_id and version are required of them.
  void set_self(const Hello& self) override { options_.self = self; }
  void expect_peers(std::size_t count) override { expected_peers_ = count; }
  // The other side's address, or empty when the peer is unknown.
  std::string address_of(PeerId peer) const;

  // An address in text begins at once, and so does a host name whose addresses are known (net/name_book.h); another is
  // looked up first, by threads of its own. A name that is not known ends in kDown, so that callers can try again.
  Result<PeerId> connect(const Endpoint& to, const Hello& self) override;
  bool is_naming(PeerId peer) const override;
  Status send(PeerId peer, const Outgoing& message) override;
  std::size_t capacity_bytes(PeerId peer) const override;
  Ways ways() const override;
  // With RDMA: registered memory.
  std::shared_ptr<BufferSource> payload_source() override;
  void land(PeerId peer, LandingTag tag, std::span<std::byte> destination) override;
  void withdraw(PeerId peer, LandingTag tag) override;
  std::size_t poll(TimeNs now, std::span<Event> events) override;
  TimeNs next_deadline() const override;
  void close(PeerId peer, Status reason) override;

  // Waiter.
  void wait(TimeNs timeout_ns) override;
  void wake() override;  // any thread

 private:
  struct Listener {
    int descriptor = -1;
    std::uint64_t serial = 0;
    bool ready = false;  // a connection may be waiting
  };

  // epoll's word for the socket of a link: this, with the serial of its connection.
  static constexpr std::uint64_t kLinkSerial = std::uint64_t{1} << 63;
  // The same for RDMA devices: this, with twice the index, and one more for what happens to the device itself.
  static constexpr std::uint64_t kDeviceSerial = std::uint64_t{1} << 62;

  struct RdmaDevice {
    std::array<std::uint8_t, 16> own_address;  // of the connections that use it
    std::shared_ptr<rdma::Device> device;
  };
  // The last time that none could be had.
  struct RdmaRefusal {
    std::array<std::uint8_t, 16> own_address{};
    Status why;
    TimeNs until = 0;
  };

  TcpTransport(TcpOptions options, Log log);
  Status open();
  Status watch(int descriptor, std::uint64_t serial, std::uint32_t events);
  Status listen_at(const Endpoint& endpoint);
  Status listen_at(const SocketAddress& address, bool both_families);

  tcp::Connection* find(PeerId peer) const;
  tcp::Connection& add_connection(int descriptor);
  void give_peer(tcp::Connection& connection);
  void forget(tcp::Connection& connection);  // destroys it
  void set_deadline(tcp::Connection& connection, TimeNs deadline);
  void activate(tcp::Connection& connection);
  void mark_dirty(tcp::Connection& connection);

  // The steps of a poll. gather() asks epoll and takes notes; it makes no event and destroys nothing.
  void stamp_deadlines();
  void look_for_input();
  void gather(int timeout_ms);
  void expire_deadlines();
  void accept_all();
  void accept_one(Listener& listener);
  bool may_accept();
  void rest_listeners(TimeNs until);
  void wake_listeners();
  void refuse_without_descriptors(Listener& listener);
  bool make_room();
  std::size_t strangers_max() const { return options_.strangers_max + expected_peers_; }
  void drop_stranger(bool names_job);
  void enlist_stranger(tcp::Connection& connection);
  void delist_stranger(tcp::Connection& connection);
  void flush_dirty();
  bool work_is_waiting() const;
  void block(TimeNs timeout_ns);

  void hear_names();
  void connect_by_name(tcp::Connection& connection);
  void name(tcp::Connection& connection, const NameBook::Addresses& texts);
  Status may_connect_to(const tcp::Connection& connection) const;
  Status start_connect(tcp::Connection& connection);
  void try_next_address(tcp::Connection& connection, Status why);
  void finish_connect(tcp::Connection& connection);
  Status begin_handshake(tcp::Connection& connection, auth::Side side, const Hello& self);
  void say(tcp::Connection& connection, std::span<const std::byte> record);
  void advance_handshake(tcp::Connection& connection);
  Result<bool> take_record(tcp::Connection& connection);
  void finish_handshake(tcp::Connection& connection);
  void fail_handshake(tcp::Connection& connection, const Status& why);

  // One connection's turn: gives out its events and reads from it. May destroy it.
  void serve(tcp::Connection& connection, frame::EventSpan& out);
  void serve_up(tcp::Connection& connection, frame::EventSpan& out);
  void serve_ended(tcp::Connection& connection, frame::EventSpan& out);
  void report_sent(tcp::Connection& connection, frame::EventSpan& out);
  void receive(tcp::Connection& connection, frame::EventSpan& out);
  Status parse(tcp::Connection& connection, frame::EventSpan& out);

  // Links, net/tcp/links.cc.
  static void count(const way::Link& link, Ways& ways);
  void begin_linking(tcp::Connection& connection);
  bool is_settled(const tcp::Connection& connection) const;
  Status heed_aside(tcp::Connection& connection, std::span<const std::byte> aside);
  Status heed_decline(tcp::Connection& connection, std::span<const std::byte> content);
  Status heed_switch(tcp::Connection& connection);
  void say_aside(tcp::Connection& connection, way::Aside kind, std::span<const std::byte> content);
  void decline(tcp::Connection& connection, const Status& why);
  void adopt_link(tcp::Connection& connection, std::unique_ptr<way::Link> link);
  void switch_over(tcp::Connection& connection);
  void drop_link(tcp::Connection& connection);
  void begin_links();
  void serve_links();
  bool arm_links();
  void disarm_links();
  void end_of_socket(tcp::Connection& connection, Status reason);

  // Shared memory, net/shm/way.cc.
  bool invite(tcp::Connection& connection);
  Status share(tcp::Connection& connection, shm::Meeting meeting, bool is_maker);
  Status heed_invitation(tcp::Connection& connection, std::span<const std::byte> content);
  Status heed_ready(tcp::Connection& connection);
  void go_without_sharing(tcp::Connection& connection, const Status& why);

  // RDMA, net/rdma/way.cc.
  Result<std::shared_ptr<rdma::Device>> rdma_device(const tcp::Connection& connection);
  Result<std::shared_ptr<rdma::Device>> open_device(const std::array<std::uint8_t, 16>& gid,
                                                    const std::string& address);
  void forget_device(RdmaDevice& known);
  Result<std::unique_ptr<rdma::Link>> make_rdma_link(const tcp::Connection& connection);
  void heed_device(std::uint64_t word);
  void look_after_slabs();
  Status offer_rdma(tcp::Connection& connection);
  Status heed_offer(tcp::Connection& connection, std::span<const std::byte> content);
  Status heed_accept(tcp::Connection& connection, std::span<const std::byte> content);
  Status heed_dead_way(tcp::Connection& connection, const Status& why);
  Status go_without_rdma(tcp::Connection& connection, const Status& why);
  void tell_way(const std::string& way, const std::string& text);
  static Status unlinked_message();
  static Status no_link_in_time(const tcp::Connection& connection);

  // Ends a connection; its kSent and kDown are given out by its later turns. Graceful: its tail may still
  // get out.
  void end(tcp::Connection& connection, Status why, bool graceful);
  void end_malformed(tcp::Connection& connection, const Status& why);
  void end_of_link(tcp::Connection& connection, const Status& why);
  void linger(tcp::Connection& connection);
  void serve_lingering(tcp::Connection& connection);

  // constant after construction
  TcpOptions options_;  // but self, see set_self(), and verbs, which are looked for when wanted
  QuietLog log_;
  int epoll_ = -1;
  int spare_ = -1;  // a descriptor to accept with, and to refuse, when there are no others
  int wake_ = -1;   // eventfd; written by any thread, never read: each write is an edge

  // shared with those who call wake()
  std::atomic<bool> wanted_ = false;  // wake() was called, and wait() has not seen it
  std::atomic<bool> asleep_ = false;  // wait() sleeps or is about to: wake() needs a system call

  // owned by the loop
  NameBook names_;
  std::unique_ptr<tcp::Resolver> resolver_;  // null: no name was looked up yet
  std::map<std::string, std::vector<std::uint64_t>>
      awaiting_;  // serials, by the name they wait for
  std::vector<Listener> listeners_;
  std::unordered_map<std::uint64_t, std::unique_ptr<tcp::Connection>>
      connections_;  // by serial number
  std::unordered_map<PeerId, tcp::Connection*> peers_;
  // Serials, the oldest first: of those that have not named the job, and of those that have.
  std::array<std::set<std::uint64_t>, 2> strangers_;
  std::size_t expected_peers_ = 0;
  std::deque<std::uint64_t> active_;    // serials, in turn: may have something for poll() to do
  std::vector<std::uint64_t> starved_;  // serials: found no room in staging, in this poll
  std::vector<std::uint64_t> dirty_;  // serials: have frames to write and a socket that takes them
  std::set<std::pair<TimeNs, std::uint64_t>> deadlines_;  // (when, serial)
  std::vector<std::uint64_t> unstamped_;  // serials: their deadline starts with the next poll()
  std::shared_ptr<rdma::Slabs> slabs_;    // null: without RDMA, or where locked memory is limited
  std::vector<RdmaDevice> rdma_devices_;
  RdmaRefusal rdma_refusal_;
  Ways past_ways_;                        // of links that are gone
  std::vector<tcp::Connection*> linked_;  // those with a link, in the order they got it
  std::vector<std::unique_ptr<way::Link>> old_links_;  // events of this poll may look into them
  frame::Staging staging_;
  TimeNs now_ = 0;  // of the last poll
  // No connection is accepted before this: there are no descriptors, or too many have come of late.
  TimeNs listeners_rest_until_ = kNever;
  TimeNs accepts_paid_until_ns_ = 0;  // each accept costs a time, see may_accept()
  std::uint64_t last_serial_ = 0;
  std::uint32_t last_peer_ = 0;
  bool gathered_ = false;      // wait() has asked epoll already
  int unlooked_count_ = 0;     // polls since then that did not ask it
  bool wake_pending_ = false;  // poll() saw a wake() that is for wait()
};

}  // namespace byteps
