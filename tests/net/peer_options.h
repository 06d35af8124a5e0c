// What a test wants of a TcpTransport and of the ways of its connections.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "net/rdma/way.h"
#include "net/shm/way.h"
#include "net/tcp/tcp_transport.h"

namespace byteps {

using Ways = std::vector<std::unique_ptr<way::Way>>;

struct PeerOptions : TcpOptions {
  std::size_t shared_ring_bytes = 0;  // 0: no shared memory
  rdma::Options rdma;
  std::shared_ptr<const rdma::Verbs> verbs;  // null: the library's
  bool tells_ways = true;
  std::function<Ways()> ways_instead;  // of all those
};

// As the application makes them: shared memory, then RDMA, whether wanted or not.
inline Result<Ways> make_ways(const PeerOptions& options) {
  if (options.ways_instead) return options.ways_instead();
  Ways ways;
  auto first =
      shm::Way::create({.ring_bytes = options.shared_ring_bytes, .job_id = options.self.job_id});
  if (!first.is_ok()) return first.status();
  ways.push_back(std::move(first).value());
  rdma::Way::Settings settings{.options = options.rdma};
  settings.options.unreachable_ns = options.unreachable_ns;
  if (options.verbs != nullptr) {
    settings.verbs = options.verbs;
  } else if (options.rdma.policy != rdma::Policy::kOff) {
    settings.verbs = rdma::load_verbs();
  }
  settings.has_slabs = options.verbs != nullptr || rdma::may_lock_all_memory();
  settings.tells_ways = options.tells_ways;
  auto second = rdma::Way::create(std::move(settings));
  if (!second.is_ok()) return second.status();
  ways.push_back(std::move(second).value());
  return ways;
}

inline Result<std::unique_ptr<TcpTransport>> make_transport(const PeerOptions& options, Log log) {
  auto ways = make_ways(options);
  if (!ways.is_ok()) return ways.status();
  return TcpTransport::create(options, std::move(ways).value(), std::move(log));
}

}  // namespace byteps
