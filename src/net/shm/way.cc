#include "net/shm/way.h"

#include <string>
#include <utility>

#include "net/shm/doorway.h"
#include "net/shm/link.h"

namespace byteps::shm {
namespace {

using Kind = QuietLog::Kind;
using way::Aside;
using way::Site;
using way::Step;

// The other side is invited.
class Invited final : public way::Attempt {
 public:
  explicit Invited(Doorway doorway) : doorway_(std::move(doorway)) {}

  const Invitation& invitation() const { return doorway_.invitation(); }

  Result<Step> heed(const Site& /*site*/, Aside /*kind*/,
                    std::span<const std::byte> content) override {
    if (!content.empty()) return way::out_of_turn();
    Step step;
    Result<Meeting> meeting = doorway_.take();
    step.failed = meeting.status();
    if (meeting.is_ok()) {
      step.link = std::make_unique<Link>(std::move(meeting).value(), Link::Side::kOpener);
    }
    return step;
  }

 private:
  Doorway doorway_;
};

}  // namespace

Result<std::unique_ptr<way::Way>> Way::create(const Options& options) {
  if (options.ring_bytes != 0 && !Segment::is_ring_size(options.ring_bytes)) {
    return Status(Code::kInvalidArgument,
                  "the ring of shared memory must be a power of two from 64 KiB to 64 MiB");
  }
  return std::unique_ptr<way::Way>(new Way(options));
}

Step Way::open(const Site& /*site*/) {
  Step step;
  Result<Doorway> doorway = Doorway::open(options_.job_id);
  step.failed = doorway.status();
  if (!doorway.is_ok()) return step;
  auto invited = std::make_unique<Invited>(std::move(doorway).value());
  const auto content = encode(invited->invitation());
  step.say = {.kind = opening(), .content = {content.begin(), content.end()}};
  step.attempt = std::move(invited);
  return step;
}

Result<Step> Way::answer(const Site& /*site*/, std::span<const std::byte> content) {
  if (content.size() != Invitation::kBytes) return way::out_of_turn();
  Step step;
  if (!is_wanted()) {
    step.failed = {Code::kUnsupported, "not wanted"};
    return step;
  }
  Result<Meeting> meeting =
      shm::answer(decode_invitation(content.first<Invitation::kBytes>()), options_.ring_bytes);
  step.failed = meeting.status();
  if (!meeting.is_ok()) return step;
  step.link = std::make_unique<Link>(std::move(meeting).value(), Link::Side::kMaker);
  step.say = {.kind = answering(), .content = {}};
  return step;
}

void Way::taken(const Site& site, const way::Link& link) {
  site.log.write(Kind::kLinked, LogLevel::kDebug, site.now,
                 site.remote.text() + ": goes on through " + link.text());
}

// Says why in the log, if it could have been otherwise.
Status Way::go_without(const Site& site, const Status& why, bool /*must_link*/, bool by_them) {
  if (by_them || why.is(Code::kUnsupported)) return Status::ok();
  const char* const remedy = why.is(Code::kMismatch)
                                 ? "run all processes of this host as one user"
                                 : "give this process more memory or descriptors";
  site.log.write(Kind::kCannotShare, LogLevel::kWarning, site.now,
                 site.remote.text() + ": on this host, but it goes on over TCP, which is slower: " +
                     why.message() + "; " + remedy + ", or set BYTEPS_ENABLE_IPC=0");
  return Status::ok();
}

}  // namespace byteps::shm
