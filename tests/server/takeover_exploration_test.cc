// Goal: whatever the order of messages, deaths and new connections, a frame that goes from shard to shard gives all who
// live one and the same sum of each round, with each contribution once, and nobody waits for ever. Method: all
// states that a few workers and successive shards can reach, in small cases, driven by the rule of production
// (takeover.h). A sum is the order in which contributions were added, so that two sums of one round differ as floats
// do.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/takeover.h"

namespace byteps {
namespace {

struct Case {
  const char* name;
  std::uint32_t workers;
  std::uint32_t rounds;
  std::uint32_t successors;
  bool zombies;  // a shard that was replaced may live on, with those who are connected to it still
  bool a_worker_dies;
};

// What somebody forgets, to see that it is found.
enum class Planted : std::uint8_t { kNothing, kHaveNotSaid, kSumNotKept, kReplacedIsTold };

struct Sum {
  std::uint32_t round = 0;
  std::string order;  // a digit for each contribution
};

struct Message {
  enum class Kind : char { kPush, kHave, kSum, kAnswer, kGive, kAgain };
  Kind kind = Kind::kPush;
  std::uint32_t round = 0;
  std::string order{};
};

struct Worker {
  std::uint32_t round = 0;
  bool waits = false;
  std::optional<Sum> kept;
  std::uint32_t shard = 0;  // to which it is connected
  std::vector<std::string> results;
  bool lives = true;
};

struct Shard {
  bool acts = true;
  std::uint32_t round = 0;  // when no takeover is under way
  std::optional<Takeover> takeover;
  std::string added;
  std::optional<Sum> finished;
  std::string lost;  // workers of whose deaths it was told
};

using Line = std::pair<std::uint32_t, std::uint32_t>;  // worker, shard
struct Ways {
  std::deque<Message> up;
  std::deque<Message> down;
};

bool has(const std::string& digits, std::uint32_t rank) {
  return digits.find(static_cast<char>('0' + rank)) != std::string::npos;
}

struct State {
  std::vector<Worker> workers;
  std::vector<Shard> shards;
  std::map<Line, Ways> lines;
  std::uint32_t replaced = 0;
  bool any_dead = false;
};

// All of it in letters.
std::string text_of(const State& state) {
  std::string text;
  const auto number = [&](std::uint64_t value) { text += std::to_string(value) + ','; };
  const auto sum = [&](const std::optional<Sum>& it) {
    text += it ? std::to_string(it->round) + ':' + it->order + ',' : "-,";
  };
  for (const Worker& each : state.workers) {
    number(each.round * 4 + (each.waits ? 2 : 0) + (each.lives ? 1 : 0));
    number(each.shard);
    sum(each.kept);
    for (const std::string& result : each.results) text += result + ';';
  }
  for (const Shard& each : state.shards) {
    number(each.acts ? each.round + 1 : 0);
    text += each.takeover ? each.takeover->text() + ',' : "-,";
    text += each.added + '/' + each.lost + ',';
    sum(each.finished);
  }
  for (const auto& [line, ways] : state.lines) {
    number(10 * line.first + line.second);
    for (const auto* way : {&ways.up, &ways.down}) {
      for (const Message& each : *way) {
        text += static_cast<char>('A' + static_cast<int>(each.kind));
        text += std::to_string(each.round) + each.order;
      }
      text += '|';
    }
  }
  number(state.replaced * 2 + (state.any_dead ? 1 : 0));
  return text;
}

class Exploration {
 public:
  Exploration(const Case& what, Planted planted) : case_(what), planted_(planted) {}

  // What went wrong first; empty: nothing can.
  std::string run() {
    State first;
    first.workers.resize(case_.workers);
    first.shards.emplace_back();
    for (std::uint32_t rank = 0; rank < case_.workers; ++rank) first.lines[{rank, 0}] = {};
    push(first);
    while (!open_.empty() && wrong_.empty()) {
      const State state = std::move(open_.front());
      open_.pop_front();
      const std::size_t before = next_count_;
      expand(state);
      if (next_count_ == before) check_end(state);
    }
    return wrong_;
  }
  std::size_t state_count() const { return seen_.size(); }

 private:
  using Kind = Message::Kind;

  void push(const State& state) {
    ++next_count_;
    if (seen_.insert(text_of(state)).second) open_.push_back(state);
  }
  void fail(const std::string& what, const State& state) {
    if (wrong_.empty()) wrong_ = what + ": " + text_of(state);
  }

  // ---- everything that may happen next

  void expand(const State& state) {
    for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
      submit(state, rank);
      go_over(state, rank);
      if (case_.a_worker_dies && !state.any_dead) die(state, rank);
    }
    for (const auto& [line, ways] : state.lines) {
      if (!ways.up.empty() && state.shards[line.second].acts) reach_shard(state, line);
      const Worker& worker = state.workers[line.first];
      if (!ways.down.empty() && worker.lives && worker.shard == line.second) {
        reach_worker(state, line);
      }
    }
    if (state.replaced < case_.successors) replace(state);
    if (state.any_dead) tell_of_death(state);
  }

  void submit(State state, std::uint32_t rank) {
    Worker& worker = state.workers[rank];
    if (!worker.lives || worker.waits || worker.round == case_.rounds) return;
    worker.waits = true;
    say(state, rank, {Kind::kPush, worker.round});
    push(state);
  }
  static void say(State& state, std::uint32_t rank, Message message) {
    const auto line = state.lines.find({rank, state.workers[rank].shard});
    if (line != state.lines.end()) line->second.up.push_back(std::move(message));
  }

  // The present shard has a successor. It is dead, or does not know.
  void replace(const State& state) {
    for (const bool dies : {true, false}) {
      if (!dies && !case_.zombies) continue;
      State next = state;
      ++next.replaced;
      next.shards.back().acts = !dies;
      Shard successor;
      successor.takeover.emplace(case_.workers);
      for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
        if (!state.workers[rank].lives) successor.lost += static_cast<char>('0' + rank);
      }
      next.shards.push_back(std::move(successor));
      push(next);
    }
  }

  // To the newest shard, each worker in its own time; what was on the old connection is lost.
  void go_over(State state, std::uint32_t rank) {
    Worker& worker = state.workers[rank];
    const auto newest = static_cast<std::uint32_t>(state.shards.size() - 1);
    if (!worker.lives || worker.shard == newest) return;
    const std::uint32_t old = std::exchange(worker.shard, newest);
    hang_up(state, {rank, old});
    if (!has(state.shards[newest].lost, rank)) {
      Ways& ways = state.lines[{rank, newest}];
      if (worker.kept && planted_ != Planted::kHaveNotSaid) {
        ways.up.push_back({Kind::kHave, worker.kept->round});
      }
      if (worker.waits) ways.up.push_back({Kind::kPush, worker.round});
    }
    push(state);
  }
  void hang_up(State& state, const Line& line) {
    if (state.lines.erase(line) == 0) return;
    Shard& shard = state.shards[line.second];
    if (!shard.acts || !shard.takeover) return;
    const Scene scene(state, line.second);
    carry_out(state, line.second, shard.takeover->on_down(WorkerRank(line.first), scene.facts()));
  }

  // What it has said may still arrive, or not.
  void die(const State& state, std::uint32_t rank) {
    for (const bool arrives : {true, false}) {
      State next = state;
      next.workers[rank].lives = false;
      next.any_dead = true;
      for (std::uint32_t shard = 0; shard < next.shards.size(); ++shard) {
        const auto line = next.lines.find({rank, shard});
        if (line == next.lines.end()) continue;
        line->second.down.clear();
        if (!arrives) hang_up(next, {rank, shard});
      }
      push(next);
    }
  }
  // The newest shard hears of it; one that was replaced hears of nothing any more.
  void tell_of_death(const State& state) {
    for (std::uint32_t index = 0; index < state.shards.size(); ++index) {
      const bool is_newest = index + 1 == state.shards.size();
      if (!is_newest && planted_ != Planted::kReplacedIsTold) continue;
      for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
        if (state.workers[rank].lives || has(state.shards[index].lost, rank)) continue;
        if (!state.shards[index].acts) continue;
        State next = state;
        next.lines.erase({rank, index});
        Shard& shard = next.shards[index];
        shard.lost += static_cast<char>('0' + rank);
        if (shard.takeover) {
          const Scene scene(next, index);
          carry_out(next, index, shard.takeover->on_lost(WorkerRank(rank), scene.facts()));
        }
        try_finish(next, index);
        push(next);
      }
    }
  }

  // ---- at a worker

  void reach_worker(State state, const Line& line) {
    Worker& worker = state.workers[line.first];
    Ways& ways = state.lines[line];
    const Message message = std::move(ways.down.front());
    ways.down.pop_front();
    if (message.kind == Kind::kAnswer && worker.waits && message.round == worker.round) {
      worker.results.push_back(message.order);
      worker.waits = false;
      ++worker.round;
      if (planted_ != Planted::kSumNotKept) worker.kept = Sum{message.round, message.order};
      check_results(state, message.round);
    } else if (message.kind == Kind::kGive && worker.kept && worker.kept->round == message.round) {
      ways.up.push_back({Kind::kSum, message.round, worker.kept->order});
    } else if (message.kind == Kind::kAgain && worker.waits && message.round == worker.round) {
      ways.up.push_back({Kind::kPush, message.round});
    }
    push(state);
  }
  void check_results(const State& state, std::uint32_t round) {
    std::string first;
    for (const Worker& each : state.workers) {
      if (!each.lives || each.results.size() <= round) continue;
      const std::string& sum = each.results[round];
      if (!first.empty() && sum != first) fail("two sums of a round", state);
      first = sum;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        if (sum.find(sum[i], i + 1) != std::string::npos) fail("added twice", state);
      }
    }
  }

  // ---- at a shard

  // The bits that the rule looks at.
  class Scene {
   public:
    Scene(const State& state, std::uint32_t index) {
      for (const char digit : state.shards[index].added) contributed_[0] |= 1U << (digit - '0');
      for (const auto& [line, ways] : state.lines) {
        if (line.second == index) connected_[0] |= 1U << line.first;
      }
    }
    Takeover::Scene facts() const { return {contributed_, connected_}; }

   private:
    std::vector<std::uint64_t> contributed_{0};
    std::vector<std::uint64_t> connected_{0};
  };

  void reach_shard(State state, const Line& line) {
    Ways& ways = state.lines[line];
    const Message message = std::move(ways.up.front());
    ways.up.pop_front();
    Shard& shard = state.shards[line.second];
    const WorkerRank from(line.first);
    if (has(shard.lost, from.value)) return push(state);
    const Round round(message.round);
    if (!shard.takeover) {
      if (message.kind == Kind::kPush) take_push(state, line.second, from, message.round);
      return push(state);
    }
    const Scene scene(state, line.second);
    Takeover::Doing doing;
    if (message.kind == Kind::kPush) doing = shard.takeover->on_push(from, round, scene.facts());
    if (message.kind == Kind::kHave) doing = shard.takeover->on_have(from, round, scene.facts());
    if (message.kind == Kind::kSum) doing = shard.takeover->on_sum(from, round);
    if (doing.keeps) shard.finished = Sum{message.round, message.order};
    carry_out(state, line.second, doing, from);
    try_finish(state, line.second);
    push(state);
  }
  void take_push(State& state, std::uint32_t index, WorkerRank from, std::uint32_t round) {
    Shard& shard = state.shards[index];
    if (round > shard.round) return fail("a push of a later round", state);
    if (round == shard.round) {
      if (!has(shard.added, from.value)) shard.added += static_cast<char>('0' + from.value);
      return try_finish(state, index);
    }
    if (round + 1 == shard.round) answer(state, index, from);
  }
  void answer(State& state, std::uint32_t index, WorkerRank to) {
    const Sum& sum = *state.shards[index].finished;
    tell(state, index, to, {Kind::kAnswer, sum.round, sum.order});
  }
  static void tell(State& state, std::uint32_t index, WorkerRank to, Message message) {
    const auto line = state.lines.find({to.value, index});
    if (line != state.lines.end()) line->second.down.push_back(std::move(message));
  }
  void carry_out(State& state, std::uint32_t index, const Takeover::Doing& doing,
                 WorkerRank from = {}) {
    Shard& shard = state.shards[index];
    if (doing.is_wrong) fail("the rule blames a peer", state);
    if (doing.drops) {
      shard.added.clear();
      if (!doing.keeps) shard.finished.reset();
    }
    if (doing.adds && !has(shard.added, from.value)) {
      shard.added += static_cast<char>('0' + from.value);
    }
    for (const WorkerRank each : doing.answered) answer(state, index, each);
    if (!shard.takeover->round()) return;
    const std::uint32_t round = shard.takeover->round()->value;
    if (doing.giver) tell(state, index, *doing.giver, {Kind::kGive, round - 1});
    for (const WorkerRank each : doing.again) tell(state, index, each, {Kind::kAgain, round});
  }
  void try_finish(State& state, std::uint32_t index) {
    Shard& shard = state.shards[index];
    if (shard.added.empty()) return;
    for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
      if (!has(shard.lost, rank) && !has(shard.added, rank)) return;
    }
    if (shard.takeover) shard.round = shard.takeover->round()->value;
    shard.takeover.reset();
    shard.finished = Sum{shard.round++, std::exchange(shard.added, {})};
    for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
      if (!has(shard.lost, rank)) answer(state, index, WorkerRank(rank));
    }
  }

  // Nothing can happen any more.
  void check_end(const State& state) {
    for (std::uint32_t rank = 0; rank < case_.workers; ++rank) {
      const Worker& worker = state.workers[rank];
      if (!worker.lives) continue;
      if (worker.round < case_.rounds) return fail("it waits for ever", state);
      for (const std::string& sum : worker.results) {
        for (std::uint32_t other = 0; other < case_.workers; ++other) {
          if (state.workers[other].lives && !has(sum, other))
            fail("one who lives is missing", state);
        }
      }
    }
  }

  const Case case_;
  const Planted planted_;
  std::unordered_set<std::string> seen_;
  std::deque<State> open_;
  std::size_t next_count_ = 0;
  std::string wrong_;
};

class TakeoverExploration : public testing::TestWithParam<Case> {};

TEST_P(TakeoverExploration, all_who_live_get_one_sum_of_each_round) {
  Exploration all(GetParam(), Planted::kNothing);
  EXPECT_EQ(all.run(), "");
  EXPECT_GT(all.state_count(), 1000U);
  RecordProperty("states", std::to_string(all.state_count()));
}

INSTANTIATE_TEST_SUITE_P(Cases, TakeoverExploration,
                         testing::Values(Case{"two_workers_and_a_zombie", 2, 2, 1, true, false},
                                         Case{"two_workers_one_dies", 2, 2, 1, true, true},
                                         Case{"two_successors", 2, 2, 2, true, false},
                                         Case{"three_workers_and_a_zombie", 3, 2, 1, true, false},
                                         Case{"three_workers_one_dies", 3, 1, 1, true, true}),
                         [](const auto& each) { return each.param.name; });

TEST(TakeoverErrors, that_a_worker_does_not_say_what_it_has_is_found) {
  EXPECT_NE(Exploration({"", 2, 2, 1, true, false}, Planted::kHaveNotSaid).run(), "");
}

TEST(TakeoverErrors, that_a_sum_is_not_kept_is_found) {
  EXPECT_NE(Exploration({"", 2, 2, 1, true, false}, Planted::kSumNotKept).run(), "");
}

TEST(TakeoverErrors, that_one_who_was_replaced_hears_of_a_death_is_found) {
  EXPECT_NE(Exploration({"", 2, 2, 1, true, true}, Planted::kReplacedIsTold).run(), "");
}

}  // namespace
}  // namespace byteps
