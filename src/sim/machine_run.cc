#include "sim/machine_run.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <queue>

#include "base/check.h"

namespace byteps::sim {
namespace {

using topology::kWhole;
using topology::Route;

// ---- who does what

// Deals pieces out in proportion to weights, as evenly as it goes.
class Dealer {
 public:
  explicit Dealer(std::vector<std::int64_t> weights)
      : weights_(std::move(weights)), credit_(weights_.size(), 0) {
    for (const std::int64_t weight : weights_) sum_ += weight;
  }
  std::size_t deal() {
    const std::size_t place = next();
    take(place);
    return place;
  }
  // To this one, whoever's turn it is.
  void take(std::size_t place) {
    for (std::size_t i = 0; i < credit_.size(); ++i) credit_[i] += weights_[i];
    credit_[place] -= sum_;
  }

 private:
  std::size_t next() const {
    std::size_t most = 0;
    for (std::size_t i = 1; i < credit_.size(); ++i) {
      if (credit_[i] + weights_[i] > credit_[most] + weights_[most]) most = i;
    }
    return most;
  }

  std::vector<std::int64_t> weights_;
  std::vector<std::int64_t> credit_;
  std::int64_t sum_ = 0;
};

struct Piece {
  bool is_direct = false;
  std::vector<std::uint32_t> leaders;  // by group: their places in the ring
  std::uint32_t lead = 0;              // the rank that sums and sends
  std::uint32_t missing = 0;    // contributions on the way out, groups or ranks on the way back
  std::uint32_t copies_in = 0;  // that have not ended
};

// Who leads is dealt among all ranks, and only then who leads in the other groups: to deal a group first, and a place
// in it, would give the lead to few ranks where both numbers go round in step.
class Deal {
 public:
  explicit Deal(const topology::Plan& plan) : plan_(plan), leads_({}) {
    std::vector<std::int64_t> leads;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      std::vector<std::int64_t> weights;
      for (std::size_t place = 0; place < plan.groups[group].size(); ++place) {
        const std::uint32_t rank = plan.groups[group][place];
        seats_.push_back({group, place});
        leads.push_back(plan.lead(group, rank));
        weights.push_back(plan.weights[rank]);
      }
      leaders_.emplace_back(weights);
    }
    leads_ = Dealer(leads);
  }

  Piece piece(bool is_direct) {
    Piece piece;
    piece.is_direct = is_direct;
    const auto [lead_group, lead_place] = seats_[leads_.deal()];
    piece.lead = plan_.groups[lead_group][lead_place];
    for (std::size_t group = 0; !is_direct && group < plan_.groups.size(); ++group) {
      std::size_t place = lead_place;
      if (group == lead_group) {
        leaders_[group].take(place);
      } else {
        place = leaders_[group].deal();
      }
      piece.leaders.push_back(static_cast<std::uint32_t>(place));
    }
    return piece;
  }

 private:
  struct Seat {
    std::size_t group;
    std::size_t place;
  };

  const topology::Plan& plan_;
  std::vector<Seat> seats_;
  Dealer leads_;
  std::vector<Dealer> leaders_;
};

// Each kind has a deal of its own.
std::vector<Piece> dealt(const topology::Plan& plan, std::uint32_t count) {
  Dealer kinds({kWhole - plan.direct, plan.direct});
  Deal grouped(plan);
  Deal direct(plan);
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool is_direct = kinds.deal() == 1;
    pieces.push_back(is_direct ? direct.piece(true) : grouped.piece(false));
  }
  return pieces;
}

// ---- the links

// What moves over links, one after the other.
class Fabric {
 public:
  using Then = std::function<void()>;
  struct Line {
    std::uint64_t mbps = 0;  // 0: no time but the pause
    TimeNs pause_ns = 0;
    std::uint64_t carried = 0;
    std::deque<std::size_t> waiting{};
    bool is_busy = false;
  };

  std::size_t add(std::uint64_t mbps, TimeNs pause_ns) {
    lines_.push_back({.mbps = mbps, .pause_ns = pause_ns});
    return lines_.size() - 1;
  }
  const std::vector<Line>& lines() const { return lines_; }
  TimeNs now() const { return now_; }

  void move(Route route, std::uint64_t bytes, Then then) {
    std::size_t id = moves_.size();
    if (free_.empty()) {
      moves_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    moves_[id] = {.route = std::move(route), .next = 0, .bytes = bytes, .then = std::move(then)};
    go_on(id);
  }
  void after(TimeNs ns, Then then) {
    moves_.push_back({.route = {}, .next = 0, .bytes = 0, .then = std::move(then)});
    events_.push({now_ + ns, ++last_number_, kNoLine, moves_.size() - 1});
  }

  void run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      if (event.line != kNoLine) {
        Line& line = lines_[event.line];
        line.is_busy = false;
        serve(event.line);
      }
      go_on(event.move);
    }
  }

 private:
  static constexpr std::size_t kNoLine = SIZE_MAX;
  struct Move {
    Route route;
    std::size_t next = 0;
    std::uint64_t bytes = 0;
    Then then;
  };
  struct Event {
    TimeNs at;
    std::uint64_t number;
    std::size_t line;
    std::size_t move;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void go_on(std::size_t id) {
    Move& move = moves_[id];
    if (move.next < move.route.size()) {
      const std::size_t line = move.route[move.next++];
      lines_[line].waiting.push_back(id);
      serve(line);
      return;
    }
    const Then then = std::move(move.then);
    free_.push_back(id);
    then();
  }

  void serve(std::size_t index) {
    Line& line = lines_[index];
    if (line.is_busy || line.waiting.empty()) return;
    line.is_busy = true;
    const std::size_t id = line.waiting.front();
    line.waiting.pop_front();
    const std::uint64_t bytes = moves_[id].bytes;
    line.carried += bytes;
    const std::uint64_t ns = line.mbps == 0 ? 0 : (bytes * 8000 + line.mbps - 1) / line.mbps;
    const TimeNs ends_ns = now_ + line.pause_ns + static_cast<TimeNs>(ns);
    events_.push({ends_ns, ++last_number_, index, id});
  }

  TimeNs now_ = 0;
  std::uint64_t last_number_ = 0;
  std::vector<Line> lines_;
  std::vector<Move> moves_;
  std::vector<std::size_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

Route joined(std::initializer_list<Route> routes) {
  Route all;
  for (const Route& route : routes) all.insert(all.end(), route.begin(), route.end());
  return all;
}

// ---- the exchange

class Run {
 public:
  Run(const topology::Machine& machine, const topology::Plan& plan,
      const MachineRunOptions& options)
      : machine_(machine),
        plan_(plan),
        options_(options),
        piece_bytes_(options.bytes / options.pieces),
        pieces_(dealt(plan, options.pieces)),
        to_reduce_(plan.groups.size()),
        to_spread_(plan.groups.size()) {
    for (const topology::Link& link : machine.links) fabric_.add(link.rate_mbps, 0);
    for (const auto& rank : machine.ranks) {
      const std::uint64_t mbps = rank.has_device ? machine.links[rank.up.front()].rate_mbps : 0;
      const TimeNs pause_ns = rank.has_device ? options.pause_ns : 0;
      out_engines_.push_back(static_cast<topology::LinkIndex>(fabric_.add(mbps, pause_ns)));
      in_engines_.push_back(static_cast<topology::LinkIndex>(fabric_.add(mbps, pause_ns)));
    }
  }

  MachineRunResult run() {
    begin_more();
    fabric_.run();
    CHECK(done_ == pieces_.size()) << done_;
    MachineRunResult result{
        .ns = fabric_.now(), .carried = {}, .bytes = piece_bytes_ * pieces_.size()};
    for (std::size_t i = 0; i < machine_.links.size(); ++i) {
      result.carried.push_back(fabric_.lines()[i].carried);
    }
    return result;
  }

 private:
  // What may be under way in a group, in one direction, and what waits for that.
  struct Launches {
    std::uint32_t under_way = 0;
    std::deque<std::size_t> waiting;
  };

  const topology::Machine::Rank& rank(std::uint32_t number) const { return machine_.ranks[number]; }
  std::uint32_t leader(std::size_t piece, std::size_t group) const {
    return plan_.groups[group][pieces_[piece].leaders[group]];
  }
  Route nodes(std::uint32_t from, std::uint32_t to) const {
    return machine_.between_nodes(rank(from).node, rank(to).node);
  }

  // Pieces are begun in their order, as memory comes free.
  void begin_more() {
    while (begun_ < pieces_.size() && under_way_ < options_.pieces_under_way) {
      ++under_way_;
      begin(begun_++);
    }
  }

  void begin(std::size_t i) {
    Piece& piece = pieces_[i];
    const auto groups = static_cast<std::uint32_t>(plan_.groups.size());
    const auto ranks = static_cast<std::uint32_t>(machine_.ranks.size());
    piece.missing = piece.is_direct ? ranks : groups;
    for (std::uint32_t from = 0; piece.is_direct && from < ranks; ++from) copy_out(i, from);
    for (std::size_t group = 0; !piece.is_direct && group < groups; ++group) {
      to_reduce_[group].waiting.push_back(i);
      launch_reduce(group);
    }
  }

  std::uint32_t launches_of(std::size_t group) const {
    if (options_.launches > 0) return options_.launches;
    return static_cast<std::uint32_t>(4 * plan_.groups[group].size());
  }

  void launch_reduce(std::size_t group) {
    Launches& launches = to_reduce_[group];
    while (launches.under_way < launches_of(group) && !launches.waiting.empty()) {
      const std::size_t piece = launches.waiting.front();
      launches.waiting.pop_front();
      ++launches.under_way;
      reduce(piece, group, 1);
    }
  }

  // From the one behind the leader on, to the leader.
  void reduce(std::size_t piece, std::size_t group, std::size_t step) {
    const auto& ring = plan_.groups[group];
    if (step >= ring.size()) {
      --to_reduce_[group].under_way;
      launch_reduce(group);
      copy_out(piece, leader(piece, group));
      return;
    }
    const std::size_t at = pieces_[piece].leaders[group] + step;
    fabric_.move(machine_.between(ring[at % ring.size()], ring[(at + 1) % ring.size()]),
                 piece_bytes_, [this, piece, group, step] { reduce(piece, group, step + 1); });
  }

  void copy_out(std::size_t piece, std::uint32_t from) {
    const Route way =
        joined({{out_engines_[from]}, rank(from).up, nodes(from, pieces_[piece].lead)});
    fabric_.move(way, piece_bytes_, [this, piece] { arrived(piece); });
  }

  void arrived(std::size_t i) {
    Piece& piece = pieces_[i];
    if (--piece.missing > 0) return;
    const std::size_t sums = piece.is_direct ? machine_.ranks.size() : plan_.groups.size();
    if (sums < 2) return send(i);
    fabric_.move({rank(piece.lead).sums}, piece_bytes_ * sums, [this, i] { send(i); });
  }

  void send(std::size_t i) {
    const topology::Machine::Rank& lead = rank(pieces_[i].lead);
    if (!lead.card) return answered(i);
    const topology::Machine::Card& card = machine_.cards[*lead.card];
    const Route out = joined({machine_.between_nodes(lead.node, card.node), card.send});
    const Route back = joined({card.receive, machine_.between_nodes(card.node, lead.node)});
    fabric_.move(out, piece_bytes_, [this, i, back] {
      fabric_.after(options_.network_ns, [this, i, back] {
        fabric_.move(back, piece_bytes_, [this, i] { answered(i); });
      });
    });
  }

  void answered(std::size_t i) {
    Piece& piece = pieces_[i];
    const auto copy_in = [&](std::uint32_t to, Fabric::Then then) {
      const Route way = joined({nodes(piece.lead, to), rank(to).down, {in_engines_[to]}});
      fabric_.move(way, piece_bytes_, std::move(then));
    };
    piece.missing =
        static_cast<std::uint32_t>(piece.is_direct ? machine_.ranks.size() : plan_.groups.size());
    piece.copies_in = piece.missing;
    if (piece.is_direct) {
      for (std::uint32_t to = 0; to < machine_.ranks.size(); ++to) {
        copy_in(to, [this, i] {
          copied_in(i);
          spread_out(i);
        });
      }
      return;
    }
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      copy_in(leader(i, group), [this, i, group] {
        copied_in(i);
        to_spread_[group].waiting.push_back(i);
        launch_spread(group);
      });
    }
  }

  void copied_in(std::size_t piece) {
    if (--pieces_[piece].copies_in > 0) return;
    --under_way_;
    begin_more();
  }

  void launch_spread(std::size_t group) {
    Launches& launches = to_spread_[group];
    while (launches.under_way < launches_of(group) && !launches.waiting.empty()) {
      const std::size_t piece = launches.waiting.front();
      launches.waiting.pop_front();
      ++launches.under_way;
      spread(piece, group, 0);
    }
  }

  // From the leader on, to the one before it.
  void spread(std::size_t piece, std::size_t group, std::size_t step) {
    const auto& ring = plan_.groups[group];
    if (step + 1 >= ring.size()) {
      --to_spread_[group].under_way;
      launch_spread(group);
      spread_out(piece);
      return;
    }
    const std::size_t at = pieces_[piece].leaders[group] + step;
    fabric_.move(machine_.between(ring[at % ring.size()], ring[(at + 1) % ring.size()]),
                 piece_bytes_, [this, piece, group, step] { spread(piece, group, step + 1); });
  }

  void spread_out(std::size_t piece) {
    if (--pieces_[piece].missing == 0) ++done_;
  }

  const topology::Machine& machine_;
  const topology::Plan& plan_;
  const MachineRunOptions options_;
  const std::uint64_t piece_bytes_;
  Fabric fabric_;
  std::vector<topology::LinkIndex> out_engines_;
  std::vector<topology::LinkIndex> in_engines_;
  std::vector<Piece> pieces_;
  std::vector<Launches> to_reduce_;
  std::vector<Launches> to_spread_;
  std::size_t begun_ = 0;
  std::uint32_t under_way_ = 0;  // with memory of the host
  std::size_t done_ = 0;
};

}  // namespace

MachineRunResult run_machine(const topology::Machine& machine, const topology::Plan& plan,
                             const MachineRunOptions& options) {
  return Run(machine, plan, options).run();
}

}  // namespace byteps::sim
