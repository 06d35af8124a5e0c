// How two ends of a connection come to a link, without a socket between them. Goal: whatever ways there are and whoever
// declines, both ends agree on where each frame is. Method: two negotiations over ways that are played, whose asides
// are carried by hand.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "net/frame/staging.h"
#include "net/way/negotiation.h"
#include "tests/net/pipe_way.h"

namespace byteps::way {
namespace {

using Side = Negotiation::Side;

// A way that is a pipe, as far as nothing goes wrong.
class PlayedWay final : public Way {
 public:
  struct Play {
    bool is_wanted = true;
    bool is_required = false;
    bool cannot_open = false;
    bool cannot_answer = false;
    bool cannot_be_connected = false;
  };
  PlayedWay(int number, Play play, std::shared_ptr<PipeDepot> depot)
      : number_(number), play_(play), pipe_(std::move(depot), 4096) {}

  std::string_view name() const override { return "a played way"; }
  bool is_wanted() const override { return play_.is_wanted; }
  bool is_required() const override { return play_.is_required; }
  Aside opening() const override { return static_cast<Aside>(10 * number_); }
  Aside answering() const override { return static_cast<Aside>(10 * number_ + 1); }
  Step open(const Site& site) override {
    if (play_.cannot_open) return failed("cannot open");
    Step step = pipe_.open(site);
    step.say->kind = opening();
    step.attempt = std::make_unique<Opened>(std::move(step.attempt), play_);
    return step;
  }
  Result<Step> answer(const Site& site, std::span<const std::byte> content) override {
    if (play_.cannot_answer || !play_.is_wanted) return failed("cannot answer");
    Result<Step> step = pipe_.answer(site, content);
    if (step.is_ok()) step.value().say->kind = answering();
    return step;
  }
  void taken(const Site& /*site*/, const Link& /*link*/) override { log += "taken;"; }
  Status go_without(const Site& /*site*/, const Status& why, bool must_link,
                    bool by_them) override {
    log += (by_them ? "they:" : "we:") + why.message() + ";";
    return must_link ? Status(Code::kUnsupported, "required: " + why.message()) : Status::ok();
  }

  std::string log;

 private:
  class Opened final : public Attempt {
   public:
    Opened(std::unique_ptr<Attempt> pipe, const Play& play) : pipe_(std::move(pipe)), play_(play) {}
    Result<Step> heed(const Site& site, Aside kind, std::span<const std::byte> content) override {
      if (play_.cannot_be_connected) return failed("cannot connect");
      return pipe_->heed(site, kind, content);
    }

   private:
    const std::unique_ptr<Attempt> pipe_;
    const Play play_;
  };
  static Step failed(const std::string& why) {
    Step step;
    step.failed = {Code::kSystem, why};
    return step;
  }

  const int number_;
  const Play play_;
  PipeWay pipe_;
};

using Plays = std::vector<PlayedWay::Play>;

// One end: what a transport has of a connection.
class End final : public LinkKeeper {
 public:
  End(Side side, const Plays& plays, const std::shared_ptr<PipeDepot>& depot)
      : log_(Log("test", LogLevel::kSilent, {})) {
    for (std::size_t i = 0; i < plays.size(); ++i) {
      ways_.push_back(std::make_unique<PlayedWay>(static_cast<int>(i) + 1, plays[i], depot));
    }
    negotiation_ = std::make_unique<Negotiation>(side, ways_, outbox_, inbox_);
  }

  Status begin() { return negotiation_->begin(site(), *this); }
  // Everything that is to be said goes to the other end, up to the switch.
  Status carry_to(End& other) {
    std::array<iovec, 16> pieces;
    std::size_t bytes = 0;
    const std::size_t count = outbox_.gather(pieces, 1 << 20, bytes);
    std::vector<std::byte> stream;
    for (const iovec& piece : std::span(pieces).first(count)) {
      const auto* const from = static_cast<const std::byte*>(piece.iov_base);
      stream.insert(stream.end(), from, from + piece.iov_len);
    }
    outbox_.advance(bytes);
    while (!stream.empty()) {
      frame::Prefix prefix;
      EXPECT_TRUE(frame::decode(std::span(stream).first<frame::kPrefixBytes>(), prefix).is_ok());
      const auto head = std::span(stream).subspan(frame::kPrefixBytes, prefix.header_bytes);
      const std::vector<std::byte> aside(head.begin(), head.end());
      stream.erase(stream.begin(),
                   stream.begin() + static_cast<std::ptrdiff_t>(prefix.head_bytes()));
      if (Status status = other.heed(aside); !status.is_ok()) return status;
    }
    return Status::ok();
  }
  Status heed(std::span<const std::byte> aside) { return negotiation_->heed(site(), *this, aside); }
  Negotiation& negotiation() { return *negotiation_; }
  PlayedWay& way(std::size_t i) { return static_cast<PlayedWay&>(*ways_.at(i)); }
  bool has_switched() const { return outbox_.has_stream_end() && link_ && link_->reads(); }

  Status keep(std::unique_ptr<Link> link) override {
    EXPECT_EQ(link_, nullptr);
    link_ = std::move(link);
    return Status::ok();
  }
  void retire() override { link_.reset(); }

 private:
  Site site() { return {.remote = remote_, .socket = -1, .now = 0, .log = log_}; }

  const Endpoint remote_{"10.0.0.1", 9};
  QuietLog log_;
  std::vector<std::unique_ptr<Way>> ways_;
  frame::Outbox outbox_;
  frame::Inbox inbox_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Negotiation> negotiation_;
};

struct Ends {
  Ends(const Plays& connecting, const Plays& accepting)
      : client(Side::kConnecting, connecting, depot), server(Side::kAccepting, accepting, depot) {}
  // Until nobody has anything to say.
  Status talk() {
    Status status = server.begin();
    if (status.is_ok()) status = client.begin();
    for (int i = 0; i < 10 && status.is_ok(); ++i) {
      status = client.carry_to(server);
      if (status.is_ok()) status = server.carry_to(client);
    }
    return status;
  }
  std::shared_ptr<PipeDepot> depot = std::make_shared<PipeDepot>();
  End client;
  End server;
};

TEST(Negotiation, both_ends_go_over_to_the_first_way_that_both_want) {
  for (const std::size_t index : {0U, 1U}) {
    const bool first_is_wanted = index == 0;
    Ends ends(Plays{{.is_wanted = first_is_wanted}, {}}, Plays(2));
    ASSERT_TRUE(ends.talk().is_ok());
    EXPECT_TRUE(ends.client.has_switched());
    EXPECT_TRUE(ends.server.has_switched());
    EXPECT_EQ(ends.client.way(index).log, "taken;");
    EXPECT_EQ(ends.server.way(index).log, "taken;");
    EXPECT_EQ(ends.client.way(1 - index).log, "");
  }
}

TEST(Negotiation, a_way_that_fails_is_followed_by_the_next_whoever_finds_out) {
  struct Case {
    PlayedWay::Play client, server;
    std::string client_log, server_log;
  };
  for (const Case& each :
       {Case{{.cannot_open = true}, {}, "we:cannot open;", ""},
        Case{
            {}, {.cannot_answer = true}, "they:refused by it: cannot answer;", "we:cannot answer;"},
        Case{{.cannot_be_connected = true},
             {},
             "we:cannot connect;",
             "they:refused by it: cannot connect;"}}) {
    Ends ends(Plays{each.client, {}}, Plays{each.server, {}});
    ASSERT_TRUE(ends.talk().is_ok());
    EXPECT_TRUE(ends.client.has_switched());
    EXPECT_TRUE(ends.server.has_switched());
    EXPECT_EQ(ends.client.way(0).log, each.client_log);
    EXPECT_EQ(ends.server.way(0).log, each.server_log);
    EXPECT_EQ(ends.client.way(1).log, "taken;");
  }
}

TEST(Negotiation, without_a_way_that_both_want_all_stays_on_the_socket) {
  Ends ends(Plays(1), Plays{{.is_wanted = false}});
  ASSERT_TRUE(ends.talk().is_ok());
  EXPECT_FALSE(ends.client.has_switched());
  EXPECT_FALSE(ends.server.has_switched());
  EXPECT_TRUE(ends.client.negotiation().is_settled());
}

TEST(Negotiation, where_a_way_is_required_nobody_is_settled_before_and_a_failure_ends_it) {
  const Plays required{{.is_required = true}};
  Ends fine(required, required);
  ASSERT_TRUE(fine.client.begin().is_ok());
  EXPECT_FALSE(fine.client.negotiation().is_settled());
  EXPECT_FALSE(fine.client.negotiation().no_link_in_time().is_ok());
  Ends talked(required, required);
  ASSERT_TRUE(talked.talk().is_ok());
  EXPECT_TRUE(talked.client.negotiation().is_settled());
  EXPECT_TRUE(talked.server.negotiation().is_settled());
  Ends refused(required, Plays{{.cannot_answer = true}});
  EXPECT_EQ(refused.talk().message(), "required: refused by it: cannot answer");
}

TEST(Negotiation, words_out_of_turn_are_errors_at_either_end) {
  const auto say = [](End& end, int kind) {
    const std::array<std::byte, 1> aside{static_cast<std::byte>(kind)};
    return end.heed(aside).is_ok();
  };
  for (const int kind : {0, 3, 4, 11, 21, 99}) {
    Ends ends(Plays(2), Plays(2));
    EXPECT_FALSE(say(ends.server, kind)) << kind;
    EXPECT_FALSE(say(ends.client, kind)) << kind;
  }
  Ends ends(Plays(2), Plays(2));
  EXPECT_FALSE(say(ends.client, 10)) << "an opening to who opens";
  ASSERT_TRUE(ends.talk().is_ok());
  for (const int kind : {3, 4, 10, 11, 20, 21}) {
    EXPECT_FALSE(say(ends.server, kind)) << kind;
    EXPECT_FALSE(say(ends.client, kind)) << kind;
  }
}

}  // namespace
}  // namespace byteps::way
