// Reactor: what a transport's thread sleeps on, and, while it is awake, whose turn it is.
//
// One edge-triggered epoll descriptor, and an eventfd for who wants to wake the thread. Connections stand in lists by
// their serials; a serial that a list still names when its connection is gone finds nothing. No clock: time comes with
// begin_poll().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <sys/epoll.h>

#include "base/status.h"
#include "base/time.h"
#include "net/way/way.h"

namespace byteps::tcp {

// A connection in the lists.
struct Turn {
  const std::uint64_t serial;
  bool is_active = false;
  bool is_dirty = false;
  TimeNs deadline = kNever;
};

class Reactor final : public way::Watcher {
 public:
  // epoll's words. Connections and listeners: their serials, which count from 1. The socket of a link: this, with the
  // serial of its connection.
  static constexpr std::uint64_t kLink = std::uint64_t{1} << 63;
  // What a way watches: this, with its number, and its own word in the lower half.
  static constexpr std::uint64_t kWay = std::uint64_t{1} << 62;
  static constexpr std::uint64_t way_word(std::size_t number) {
    return kWay | static_cast<std::uint64_t>(number) * way::Way::kWordsMax;
  }

  Reactor() = default;
  ~Reactor() override;
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;
  // kSystem: no descriptor.
  Status open();

  Status watch(int descriptor, std::uint64_t word, std::uint32_t events);
  Status watch_input(int descriptor, std::uint64_t word) override {
    return watch(descriptor, word, EPOLLIN);
  }
  // Another word, or other events (0: none), for what is watched already.
  bool rewatch(int descriptor, std::uint64_t word, std::uint32_t events);

  // ---- time, and what has come

  void begin_poll(TimeNs now) { now_ = now; }
  TimeNs now() const { return now_; }  // of the last poll
  // What the descriptors say, until the next call. Empty also when wait_for_input() has told it, or it is not worth a
  // look.
  std::span<const epoll_event> look();

  // ---- sleeping

  // For wait(): somebody has called wake() since the last sleep.
  bool take_wake() { return std::exchange(wake_pending_, false); }
  // Before wait_for_input(): false when somebody wants it not to. wake_up() must follow.
  bool fall_asleep();
  // Until there is something to say, which is as of look(), or somebody wakes.
  std::span<const epoll_event> wait_for_input(TimeNs timeout_ns);
  void wake_up(bool has_slept);
  void wake();  // any thread

  // ---- turns

  // It may have something for poll() to do.
  void activate(Turn& turn);
  // It has frames to write and a socket that takes them.
  void mark_dirty(Turn& turn);
  // It found no room in staging: it is first in the next poll.
  void starve(Turn& turn);
  void set_deadline(Turn& turn, TimeNs deadline);

  std::size_t active_count() const { return active_.size(); }
  std::uint64_t take_active();
  std::vector<std::uint64_t> take_dirty() { return std::exchange(dirty_, {}); }
  // Whose deadline is over; it is to get another one, or none.
  std::optional<std::uint64_t> expired() const;
  void end_poll();
  bool has_work() const { return !active_.empty() || !dirty_.empty(); }
  TimeNs next_deadline() const { return deadlines_.empty() ? kNever : deadlines_.begin()->first; }

 private:
  static constexpr std::uint64_t kWake = 0;  // epoll's word for the eventfd

  std::span<const epoll_event> gather(int timeout_ms);

  int epoll_ = -1;
  int wake_ = -1;  // eventfd; written by any thread, never read: each write is an edge

  // shared with those who call wake()
  std::atomic<bool> wanted_ = false;  // wake() was called, and wait() has not seen it
  std::atomic<bool> asleep_ = false;  // wait() sleeps or is about to: wake() needs a system call

  // owned by the loop
  std::array<epoll_event, 256> ready_;
  std::deque<std::uint64_t> active_;    // in turn
  std::vector<std::uint64_t> starved_;  // in this poll
  std::vector<std::uint64_t> dirty_;
  std::set<std::pair<TimeNs, std::uint64_t>> deadlines_;
  TimeNs now_ = 0;
  bool gathered_ = false;      // wait_for_input() has asked epoll already
  int unlooked_count_ = 0;     // polls since then that did not ask it
  bool wake_pending_ = false;  // poll() saw a wake() that is for wait()
};

}  // namespace byteps::tcp
