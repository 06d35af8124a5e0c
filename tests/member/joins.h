// Joins of small jobs, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/config.h"
#include "member/member.h"

namespace byteps {

// It ends with any of its processes.
inline Config small_job(std::uint32_t workers = 2, std::uint32_t servers = 1) {
  Config config;
  config.recovers = false;
  config.job.worker_count = workers;
  config.job.server_count = servers;
  config.job.scheduler_host = "10.0.0.9";
  config.job.scheduler_port = 9000;
  return config;
}

inline wire::Join worker_join(std::uint32_t rank, std::string host, std::uint32_t workers = 2,
                              std::uint32_t servers = 1) {
  Config config = small_job(workers, servers);
  config.job.rank = rank;
  return make_join(config, Role::kWorker, std::move(host), {});
}

inline wire::Join server_join(std::string host, std::uint16_t port, std::uint32_t wish = kNoRank) {
  Config config = small_job(0, 0);
  config.job.wanted_server_rank = wish;
  return make_join(config, Role::kServer, std::move(host), {{"10.0.0.2", port}});
}

}  // namespace byteps
