// Switchboard: a network for ScriptedTransports. What one of them sends arrives at another after a delay that a Prng
// picks; connections end when a process does, when one side closes, and when told. It moves in advance() only.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "tests/net/scripted_transport.h"

namespace byteps {

class Switchboard;
class SwitchTransport;

// One connection: ends[0] began it.
struct SwitchLine {
  SwitchTransport* ends[2] = {nullptr, nullptr};  // null: its process has ended
  PeerId peers[2];
  Hello hellos[2];            // what each end hears
  TimeNs latest[2] = {0, 0};  // arrival of the last event at each end
  bool is_down = false;
};

// A process of the network, until its transport ends.
class SwitchTransport final : public ScriptedTransport {
 public:
  static constexpr std::size_t kWindow = 4;  // messages; small, so that kAgain is met

  SwitchTransport(Switchboard& board, const Hello& hello);
  ~SwitchTransport() override;

  void listen(const Endpoint& at) { listens_at = at.text(); }

  // For the switchboard.
  const Hello self;  // what those who connect are told
  std::string listens_at;
  std::map<PeerId, std::pair<SwitchLine*, int>> lines;  // and which of its ends

 private:
  Switchboard& board_;
};

class Switchboard {
 public:
  explicit Switchboard(std::uint64_t seed) : prng_(seed) {}

  // Everything up to `now` happens.
  void advance(TimeNs now);
  TimeNs now() const { return now_; }
  // When something more will; kNever: not before somebody does something.
  TimeNs next_ns();
  // Ends a connection picked at random, with all that is on the way. False: there is none.
  bool drop_one();

  void plug(SwitchTransport& transport) { transports_.push_back(&transport); }
  void unplug(SwitchTransport& transport);

 private:
  struct Delivery {
    SwitchLine* line;
    int side;
    Event::Kind kind;
    ScriptedTransport::Sent message;
    Status why;
  };

  TimeNs delay() { return static_cast<TimeNs>(prng_.below(3 * kMillisecond)) + 10 * kMicrosecond; }
  // Takes up what the owners did since the last time.
  void collect();
  void open(SwitchTransport& from, const ScriptedTransport::Attempt& attempt);
  void carry(SwitchLine& line, int side, ScriptedTransport::Sent message);
  // `closer`: the end that closed it; what it has sent still arrives. -1: the network broke it.
  void end(SwitchLine& line, const Status& why, int closer = -1);
  void deliver(Delivery delivery, TimeNs at);
  void arrive(Delivery& delivery);

  Prng prng_;
  TimeNs now_ = 0;
  std::vector<SwitchTransport*> transports_;
  std::deque<SwitchLine> lines_;
  std::multimap<TimeNs, Delivery> agenda_;
};

inline SwitchTransport::SwitchTransport(Switchboard& board, const Hello& hello)
    : ScriptedTransport(kWindow), self(hello), board_(board) {
  closes_late = true;
  board_.plug(*this);
}

inline SwitchTransport::~SwitchTransport() {
  board_.unplug(*this);
}

inline void Switchboard::advance(TimeNs now) {
  collect();
  while (!agenda_.empty() && agenda_.begin()->first <= now) {
    Delivery delivery = std::move(agenda_.begin()->second);
    agenda_.erase(agenda_.begin());
    arrive(delivery);
  }
  now_ = now;
}

inline TimeNs Switchboard::next_ns() {
  collect();
  return agenda_.empty() ? kNever : agenda_.begin()->first;
}

inline void Switchboard::collect() {
  for (SwitchTransport* transport : transports_) {
    for (const auto& attempt : std::exchange(transport->attempts, {})) open(*transport, attempt);
    for (auto& message : std::exchange(transport->sent, {})) {
      const auto [line, side] = transport->lines.at(message.peer);
      carry(*line, side, std::move(message));
    }
    for (const auto& [peer, why] : std::exchange(transport->closed, {})) {
      const auto [line, side] = transport->lines.at(peer);
      end(*line, why, side);
    }
  }
}

inline void Switchboard::open(SwitchTransport& from, const ScriptedTransport::Attempt& attempt) {
  const std::string to = attempt.to.text();
  SwitchLine& line = lines_.emplace_back();
  line.ends[0] = &from;
  line.peers[0] = attempt.peer;
  from.lines[attempt.peer] = {&line, 0};
  const auto listener =
      std::ranges::find_if(transports_, [&](const auto* each) { return each->listens_at == to; });
  if (listener == transports_.end()) {
    return end(line, {Code::kDisconnected, to + ": connection refused"});
  }
  const Hello& theirs = (*listener)->self;
  if (theirs.version != attempt.hello.version) {
    const std::string version = std::to_string(attempt.hello.version);
    return end(line, {Code::kMismatch, to + " does not speak version " + version});
  }
  if (theirs.job_id != attempt.hello.job_id) {
    return end(line, {Code::kMismatch, to + " belongs to another job"});
  }
  line.ends[1] = *listener;
  line.hellos[0] = theirs;
  line.hellos[1] = attempt.hello;
  const TimeNs at = now_ + delay();
  for (const int side : {0, 1}) deliver({&line, side, Event::Kind::kUp, {}, {}}, at);
}

inline void Switchboard::carry(SwitchLine& line, int side, ScriptedTransport::Sent message) {
  if (line.is_down) return;  // it comes back at the end
  deliver({&line, side, Event::Kind::kSent, {}, {}}, now_ + delay());
  deliver({&line, 1 - side, Event::Kind::kReceived, std::move(message), {}}, now_ + delay());
}

inline void Switchboard::end(SwitchLine& line, const Status& why, int closer) {
  if (line.is_down) return;
  line.is_down = true;
  for (const int side : {0, 1}) {
    if (line.ends[side] == nullptr) continue;
    // T3: what has not arrived is lost; a random part of it, so that tails differ.
    const bool keeps_all = closer == 1 - side;
    const TimeNs cut = keeps_all ? kNever : now_ + (prng_.chance(0.5) ? 0 : delay());
    std::erase_if(agenda_, [&](const auto& entry) {
      const Delivery& delivery = entry.second;
      return delivery.line == &line && delivery.side == side && entry.first > cut &&
             delivery.kind == Event::Kind::kReceived;
    });
    const Status told = keeps_all ? Status(Code::kDisconnected, "the other side has closed") : why;
    deliver({&line, side, Event::Kind::kDown, {}, told}, now_ + delay());
  }
}

inline void Switchboard::deliver(Delivery delivery, TimeNs at) {
  TimeNs& latest = delivery.line->latest[delivery.side];
  latest = std::max(latest + 1, at);
  agenda_.emplace(latest, std::move(delivery));
}

inline void Switchboard::arrive(Delivery& delivery) {
  SwitchLine& line = *delivery.line;
  const int side = delivery.side;
  SwitchTransport* const here = line.ends[side];
  if (here == nullptr) return;
  const ScriptedTransport::Sent& message = delivery.message;
  switch (delivery.kind) {
    case Event::Kind::kUp:
      if (side == 0) return here->up(line.peers[0], line.hellos[0]);
      line.peers[1] = here->arrive(line.hellos[1]);
      here->lines[line.peers[1]] = {&line, 1};
      return;
    case Event::Kind::kReceived:
      return here->say(line.peers[side], message.bytes, message.payload, message.bulk);
    case Event::Kind::kSent:
      return here->give_back(line.peers[side], 1);
    case Event::Kind::kDown:
      return here->end(line.peers[side], delivery.why);
  }
}

inline void Switchboard::unplug(SwitchTransport& transport) {
  collect();
  for (SwitchLine& line : lines_) {
    for (SwitchTransport*& here : line.ends) {
      if (here != &transport) continue;
      end(line, {Code::kDisconnected, "the peer's process ended"});
      here = nullptr;
    }
  }
  std::erase(transports_, &transport);
}

inline bool Switchboard::drop_one() {
  std::vector<SwitchLine*> open;
  for (SwitchLine& line : lines_) {
    if (!line.is_down) open.push_back(&line);
  }
  if (open.empty()) return false;
  end(*open[prng_.below(open.size())], {Code::kDisconnected, "dropped by the test"});
  return true;
}

}  // namespace byteps
