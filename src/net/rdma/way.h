// Way: how the two ends of a connection come to RDMA.
//
// The connecting side makes its half of a link and offers it; the accepting side makes its own, connects it and
// accepts; then the connecting side connects its half. Offer and accept are a PeerInfo each (net/rdma/queue_pair.h).
// They travel over the connection on which both have proved that they belong to the job.
//
// Then each side sends the other a probe by RDMA. The connecting side goes over when its own has arrived and the
// other's has come.
//
// A way has the devices of its transport's connections, and the memory that they send from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "net/address.h"
#include "net/rdma/device.h"
#include "net/rdma/link.h"
#include "net/rdma/options.h"
#include "net/rdma/slabs.h"
#include "net/rdma/verbs.h"
#include "net/way/way.h"

namespace byteps::rdma {

class Way final : public way::Way {
 public:
  struct Settings {
    Options options;
    // The library's, or why there is none. Looked at where RDMA is wanted.
    Result<std::shared_ptr<const Verbs>> verbs = Status(Code::kUnsupported, "no RDMA library");
    // Payloads are sent from where they lie. Only where locked memory is unlimited: otherwise it is for the rings,
    // which connections cannot do without.
    bool has_slabs = false;
    // Says at the level INFO which way connections go, once for each way and reason. Of the transports of a process
    // that have the same peers one is enough; the others say it at the level DEBUG.
    bool tells_ways = true;
  };
  // kInvalidArgument: a limit is out of range.
  static Result<std::unique_ptr<way::Way>> create(Settings settings);

  void attach(way::Watcher& watcher, std::uint64_t first_word) override;
  void heed_input(std::uint64_t n, TimeNs now, QuietLog& log) override;
  void begin_poll(TimeNs now, QuietLog& log) override;
  std::shared_ptr<BufferSource> payload_source() override { return slabs_; }

  std::string_view name() const override { return "RDMA"; }
  bool is_wanted() const override { return options().policy != Policy::kOff; }
  bool is_required() const override { return options().policy == Policy::kRequired; }
  way::Aside opening() const override { return way::Aside::kOffer; }
  way::Aside answering() const override { return way::Aside::kAccept; }
  way::Step open(const way::Site& site) override;
  Result<way::Step> answer(const way::Site& site, std::span<const std::byte> content) override;
  void taken(const way::Site& site, const way::Link& link) override;
  Status explained(const Status& failure) const override;
  Status go_without(const way::Site& site, const Status& why, bool must_link,
                    bool by_them) override;
  Status no_link_in_time(way::Stage stage) const override;
  Status unlinked_message() const override;

 private:
  struct Known {
    GidBytes own_address;  // of the connections that use it
    std::shared_ptr<Device> device;
  };
  // The last time that none could be had.
  struct Refusal {
    GidBytes own_address{};
    Status why;
    TimeNs until = 0;
  };

  explicit Way(Settings settings);
  const Options& options() const { return settings_.options; }
  Result<std::unique_ptr<Link>> make_link(const way::Site& site);
  Result<std::shared_ptr<Device>> device_of(const way::Site& site);
  Result<std::shared_ptr<Device>> open_device(const GidBytes& gid, const std::string& address);
  void forget(Known& known);
  void tell(QuietLog& log, const std::string& subject, const std::string& text) const;

  const Settings settings_;
  const std::shared_ptr<Slabs> slabs_;  // null: payloads are copied
  way::Watcher* watcher_ = nullptr;     // from attach() on
  std::uint64_t first_word_ = 0;
  std::vector<Known> devices_;
  Refusal refusal_;
};

}  // namespace byteps::rdma
