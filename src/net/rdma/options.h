// Options: how connections use RDMA (base/config.h), and how long they may go without an answer.
#pragma once

#include "base/config.h"
#include "base/time.h"

namespace byteps::rdma {

using Policy = RdmaPolicy;

struct Options : RdmaConfig {
  // A peer whose device acknowledges nothing is given up after about this.
  TimeNs unreachable_ns = 1500 * kMillisecond;
};

}  // namespace byteps::rdma
