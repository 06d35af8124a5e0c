// Options: how connections use RDMA. See docs/rdma.md for the variables they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/time.h"

namespace byteps::rdma {

enum class Policy : std::uint8_t {
  kNever,
  kAuto,      // where both ends can; otherwise the connection stays on TCP
  kRequired,  // a connection that cannot, and whose ends are not on one host, ends with an error
};

struct Options {
  Policy policy = Policy::kNever;
  // Which device, which of its ports and which entry of that port's GID table. Where not given: those that belong to
  // the local address of the connection. One name, or several with commas between ("mlx5_0,mlx5_1"): only these.
  std::string device;
  int port = 0;        // from 1; 0: not given
  int gid_index = -1;  // -1: not given
  std::uint8_t traffic_class = 0;  // of the packets: DSCP * 4 + ECN, RoCE only
  std::uint8_t service_level = 0;
  // Registered memory of a connection: so much to receive into and as much to send from. A power of two from 64 KiB to
  // 64 MiB.
  std::size_t ring_bytes = std::size_t{2} << 20;
  // Writes that may be under way to this side, and from it, by connection.
  std::uint32_t receive_depth = 512;  // from 32 to 4000
  std::uint32_t send_depth = 256;     // from 16 to 4000
  // A peer whose device acknowledges nothing is given up after about this.
  TimeNs unreachable_ns = 1500 * kMillisecond;
};

inline constexpr std::uint32_t kReceiveDepthMin = 32;
inline constexpr std::uint32_t kSendDepthMin = 16;
inline constexpr std::uint32_t kDepthMax = 4000;  // four credits of window.h

}  // namespace byteps::rdma
