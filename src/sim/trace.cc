#include "sim/trace.h"

#include <array>
#include <cstdio>

namespace byteps::sim {

void Trace::say(TimeNs at, const std::string& text) {
  if (!keeps_text()) return;
  std::array<char, 40> when{};
  std::snprintf(when.data(), when.size(), "%12.6f ms  ", static_cast<double>(at) / kMillisecond);
  lines_.push_back(when.data() + text);
  if (lines_.size() > events_max_) lines_.pop_front();
}

}  // namespace byteps::sim
