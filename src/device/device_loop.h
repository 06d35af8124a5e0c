// DeviceLoop: the thread that speaks with devices, so that neither a caller nor the network waits for their driver: its
// calls take locks of its own, and may stand still for as long as somebody else's do.
//
// It begins copies in the order in which they were ordered, and looks whether what is under way has happened: of each
// stream only at the oldest, for a stream's work ends in order. It looks again soon after something has happened, and
// more and more seldom while nothing does: a wait that takes t is noticed t/16 late, at most kSeldomNs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "device/device.h"
#include "device/orders.h"
#include "loop/actor.h"
#include "loop/mailbox.h"

namespace byteps::device {

// A tensor in which nobody else takes part: its input becomes its output, without a network.
struct Alone {
  Place place;
  abi::DeviceAddress input = 0;
  abi::DeviceAddress output = 0;  // may be the input
  std::size_t bytes = 0;
  // What the values become, in place and in host memory: called for one piece after the other. Empty: they stay.
  std::function<void(std::span<std::byte>)> finish;
  std::function<void(Status)> ended;  // called once, by the loop's thread; must not block
};

class DeviceLoop final : public Actor {
 public:
  // All outlive it. `reports`: null where nobody orders. Those that find no room are posted again in the next turn.
  DeviceLoop(Mailbox<Order>& orders, Mailbox<Alone>& alone, Mailbox<Report>* reports)
      : orders_(orders), alone_(alone), reports_(reports) {}

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  bool finished() const override { return is_finished_; }
  void failed(const Status& why) override;

  // Any thread, when nothing is posted any more: what waits for a stream is given up, and the loop is finished when no
  // copy is under way. Its waiter is to be woken.
  void close() { is_closing_.store(true, std::memory_order_release); }

  static constexpr TimeNs kSoonNs = 20 * kMicrosecond;
  static constexpr TimeNs kSeldomNs = 500 * kMicrosecond;

 private:
  // A piece of a tensor that is finished in host memory. Each is copied out, finished and copied in before the next.
  static constexpr std::size_t kPieceBytes = 1 << 20;

  // What an event ends.
  struct UnderWay {
    Event event;
    Report report;
    std::size_t alone = 0;  // not 0: a step of this one, and nothing is reported
  };
  struct AloneState {
    enum class Step : std::uint8_t { kAwait, kWithin, kOut, kIn };
    Alone call;
    Step step = Step::kAwait;
    bool is_under_way = false;
    std::size_t done_bytes = 0;
    std::vector<std::byte> piece;
  };
  using Lane = std::tuple<Device*, Order::Kind, std::uint64_t>;

  void begin(Order& order);
  void begin_alone(Alone&& call);
  void go_on(std::size_t number, const Status& result);
  void begin_piece(std::size_t number);
  void end_alone(std::size_t number, const Status& result);
  // Begins what `start` gives the event of.
  template <typename Start>
  void put(Lane lane, const Report& report, std::size_t alone, Start&& start);
  template <typename Start>
  void put_alone(std::size_t number, AloneState::Step step, Start&& start);
  std::size_t look();
  void over(UnderWay&& ended, const Status& result);
  void post_reports();
  void give_up();
  void close_boxes();

  Mailbox<Order>& orders_;
  Mailbox<Alone>& alone_;
  Mailbox<Report>* const reports_;
  std::atomic<bool> is_closing_{false};
  bool is_finished_ = false;
  bool keeps_out_ = false;  // of captures
  std::map<Lane, std::deque<UnderWay>> lanes_;
  std::map<std::size_t, AloneState> alone_states_;  // by number
  std::size_t last_alone_ = 0;
  std::deque<Report> to_report_;
  TimeNs now_ = 0;
  TimeNs moved_ns_ = 0;  // when something happened last
  TimeNs next_look_ns_ = kNever;
  std::vector<Order> fresh_;
  std::vector<Alone> fresh_alone_;
};

}  // namespace byteps::device
