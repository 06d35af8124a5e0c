// Socket: a connected TCP socket, and what epoll and its own calls have said of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "net/address.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "net/tcp/record.h"

namespace byteps::tcp {

// Each of these functions does system calls and never blocks. Reasons do not name the other side.
class Socket {
 public:
  explicit Socket(int number) : descriptor(number) {}
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Writes from the outbox until it is empty, the socket is full or calls_max calls were made. A failure
  // is kept in write_error: what the other side sent before must still be read, and reading finds the
  // end.
  void flush(frame::Outbox& outbox, std::size_t batch_bytes, int calls_max);
  // flush() may write something.
  bool can_flush(const frame::Outbox& outbox) const {
    return writable && outbox.unsent_bytes() > 0 && !outbox.is_past_stream();
  }
  // Says these bytes, if that needs no waiting.
  void say(std::span<const std::byte> bytes) const;

  // Reads into `places`. Received: > 0. Nothing there now: 0. At its end or broken: -1, and `reason` says
  // so.
  std::ptrdiff_t receive(const frame::Inbox::Places& places, Status& reason);
  // Reads the other side's next record without a byte beyond it. True when `record` has all of it.
  Result<bool> read_record(std::vector<std::byte>& record, RecordHead& head);
  // Reads and throws away a bounded amount. False when the other side has closed too.
  bool drain();

  // What epoll says.
  void heed(std::uint32_t events);
  int release() { return std::exchange(descriptor, -1); }
  void close();

  int descriptor;                // -1: none
  bool readable = false;         // reading may bring something
  bool writable = false;         // writing may take something
  bool peer_has_closed = false;  // epoll saw the end of the stream
  int write_error = 0;

 private:
  Status closed_by_peer() const;
};

// "connection reset by peer": kTimeout for ETIMEDOUT, otherwise kDisconnected.
Status connection_error(int error_number);
bool is_out_of_descriptors(int error_number);
// kSystem; where there are no descriptors it says what to do.
Status socket_error(const std::string& what, int error_number);

// A socket option that switches something on. Refused only for sockets that are no TCP sockets; and then it would only
// be slower.
void set_option(int descriptor, int level, int option, int value = 1);
// Options of every TCP socket, of the address that it listens at or connects to. See TcpOptions::unreachable_ns:
// otherwise the kernel goes on trying for a quarter of an hour, and an idle connection is never missed.
void prepare(int descriptor, const SocketAddress& address, TimeNs unreachable_ns);
SocketAddress local_address(int descriptor);
SocketAddress remote_address(int descriptor);
// Its packets go, from now on, by this interface, whatever the routes say. kSystem: it may not be.
Status hold_to_device(int descriptor, const std::string& interface);
// The shortest round trip that the kernel has seen on a connection, that of connecting included; 0: it does not say.
TimeNs round_trip_ns(int descriptor);
// On a long line some packet is lost by chance all the time. Congestion control that takes each loss for a full queue
// (reno, cubic) then leaves most of the line idle: with 1 in 1,000 lost, 100 ms and 50 Mbit/s reno has 3 Mbit/s. BBR
// goes by the rate that arrives; it takes their place where the kernel has it and lets us. Another one stays.
void fit_to_long_line(int descriptor);
// Without a job key.
Status not_loopback(const std::string& what);

}  // namespace byteps::tcp
