// Tells threads apart. Only src/loop starts them; others may have to know who called.
#pragma once

#include <thread>

namespace byteps {

using ThreadId = std::thread::id;

inline ThreadId this_thread() {
  return std::this_thread::get_id();
}

}  // namespace byteps
