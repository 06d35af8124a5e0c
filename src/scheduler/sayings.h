// What the scheduler says to people about who is here and who is missing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/cause.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/time.h"
#include "net/wire.h"
#include "scheduler/seats.h"

namespace byteps {

// What it is doing, for the sentences.
struct Scene {
  const JobConfig& job;
  const Seats& seats;
  Epoch epoch;
  bool is_gathering = false;
  bool is_confirming = false;
};

// Who is missing and who is here. `last_refusal`: of this gathering; empty: none.
std::string waiting_text(const Scene& scene, const std::string& last_refusal, TimeNs now);
// The same as facts.
Cause waiting_cause(const Scene& scene);
// To a worker that is back after its rank was given up.
Status went_on_without(const std::string& worker);
// Whose leaving somebody waits for who came while an epoch runs.
std::string running_text(const Seats& seats, TimeNs now);
// That processes were started for other sizes than the workers say; empty: they were not, or it does not matter now.
std::string other_sizes_text(const Scene& scene);
// Who sums: "2 servers", or "relays of 2 machines with 4 workers each, then 2 servers".
std::string who_sums_text(const wire::Roster& roster, std::size_t servers);
// What users may not expect of who sums. `local_reduce`: as rank 0 wants.
std::vector<std::string> summing_texts(const wire::Roster& roster, std::size_t servers,
                                       bool local_reduce);

}  // namespace byteps
