#include "app/own_place.h"

#include <memory>
#include <utility>
#include <vector>

#include "loop/executor.h"
#include "topology/nvml.h"
#include "topology/survey.h"
#include "topology/sysfs.h"
#include "topology/visible.h"

namespace byteps {
namespace {

// May block.
topology::Place find_place(const PlaceQuestion& question) {
  const auto loaded = topology::load_nvml(question.nvml_library);
  if (!loaded.is_ok()) return {};
  const topology::Nvml& nvml = loaded.value();
  const topology::NvmlSession session(nvml);
  const auto device = topology::device_of(
      topology::visible_devices(topology::devices_of(nvml), question.visible), question.local);
  if (!device) return {};
  const topology::PeersOf peers = [&](const topology::PciAddress& one) {
    return topology::peers_of(nvml, one);
  };
  topology::Place place =
      topology::place_at(topology::Sysfs(question.sys), *device, question.interface, peers);
  if (question.card_mbps > 0) place.card_mbps = question.card_mbps;
  return place;
}

}  // namespace

PlaceQuestion place_question(const ParsedEnvironment& parsed, const Environment& environment) {
  PlaceQuestion question{
      .local = parsed.config.job.local,
      .visible = {},
      .interface = parsed.interfaces.size() == 1 ? parsed.interfaces.front() : "",
      .card_mbps = parsed.config.job.card.rate_mbps};
  const auto visible = environment.find(kVisibleDevices);
  if (visible != environment.end()) question.visible = visible->second;
  return question;
}

topology::Place own_place(const PlaceQuestion& question, TimeNs at_most_ns) {
  const auto found = std::make_shared<topology::Place>();
  Executor reader("byteps-place", 1);
  const Status begun = reader.post([question, found] { *found = find_place(question); });
  // Who is still at it is left to itself, and nobody looks at what it finds.
  if (!begun.is_ok() || !reader.settle(at_most_ns)) return {};
  // What the kernel says of a strange machine may be what no Join says: then others would refuse it.
  const auto told = topology::decode(topology::encode(*found));
  return told ? *told : topology::Place();
}

}  // namespace byteps
