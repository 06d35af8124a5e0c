// Way: how the two ends of a connection come to shared memory, when they are on one host. The connecting side invites;
// the other one makes the memory, hands it over at the doorway (net/shm/doorway.h), and says that it is ready.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "net/way/way.h"

namespace byteps::shm {

struct Options {
  // By a connection and each of its directions: a power of two from 64 KiB to 64 MiB. The accepting side makes it, and
  // its value is that of the connection. 0: none is made, and none of others is used.
  std::size_t ring_bytes = 0;
  // Part of the doorways' names, so that a person sees whose they are.
  std::array<std::byte, 16> job_id{};
};

class Way final : public way::Way {
 public:
  // kInvalidArgument: no such ring can be.
  static Result<std::unique_ptr<way::Way>> create(const Options& options);

  std::string_view name() const override { return "shared memory"; }
  bool is_wanted() const override { return options_.ring_bytes > 0; }
  way::Aside opening() const override { return way::Aside::kInvite; }
  way::Aside answering() const override { return way::Aside::kReady; }
  way::Step open(const way::Site& site) override;
  Result<way::Step> answer(const way::Site& site, std::span<const std::byte> content) override;
  void taken(const way::Site& site, const way::Link& link) override;
  Status go_without(const way::Site& site, const Status& why, bool must_link,
                    bool by_them) override;

 private:
  explicit Way(const Options& options) : options_(options) {}

  const Options options_;
};

}  // namespace byteps::shm
