#include "app/machine_view.h"

#include <cstdio>
#include <vector>

#include "app/process.h"
#include "topology/machine.h"
#include "topology/nvml.h"
#include "topology/planner.h"
#include "topology/survey.h"

namespace byteps {

int show_machine(const std::string& sys, const Environment& environment) {
  const auto say = [](const char* word, const std::string& text) {
    std::printf("%s %s\n", word, text.c_str());
  };
  const auto nvml = topology::load_nvml("");
  const topology::PeersOf peers_of = [&](const topology::PciAddress& device) {
    return nvml.is_ok() ? topology::peers_of(nvml.value(), device) : std::vector<topology::Peer>();
  };
  const topology::Survey survey = topology::survey_of(topology::Sysfs(sys), peers_of);
  for (const std::string& line : topology::drawing_of(survey)) say("tree", line);
  if (survey.gpus.empty()) return kExitOk;

  topology::Wishes wishes;
  const auto parsed = parse_environment(Role::kWorker, environment);
  if (parsed.is_ok()) {
    wishes = {.switch_size = parsed.value().config.device.group_size,
              .roots = parsed.value().config.device.reduce_roots};
  }
  const topology::Machine machine = topology::machine_of(survey.places);
  const topology::Plan plan = topology::plan_of(machine, wishes);
  say("plan", topology::describe(machine, plan));
  for (const std::string& remark : plan.remarks) say("remark", remark);
  return kExitOk;
}

}  // namespace byteps
