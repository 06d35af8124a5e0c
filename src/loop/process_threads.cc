#include "loop/process_threads.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <dirent.h>
#include <unistd.h>

namespace byteps {

namespace {

// A Runner names its thread (runner.cc). One that has ended meanwhile is no other thread.
bool is_runner_or_gone(const char* id) {
  const std::string path = "/proc/self/task/" + std::string(id) + "/comm";
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return access(("/proc/self/task/" + std::string(id)).c_str(), F_OK) != 0;
  char name[32] = {};
  const bool read = std::fgets(name, sizeof name, file) != nullptr;
  std::fclose(file);
  return !read || std::strncmp(name, "byteps-", 7) == 0;
}

}  // namespace

pid_t kernel_thread() {
  thread_local const pid_t self = gettid();
  return self;
}

bool no_thread_beyond(std::span<const pid_t> known) {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
  if (tasks == nullptr) return false;
  const pid_t self = kernel_thread();
  while (const dirent* const entry = readdir(tasks.get())) {
    const pid_t id = static_cast<pid_t>(std::atol(entry->d_name));
    if (id <= 0 || id == self) continue;  // "." and ".."
    if (std::binary_search(known.begin(), known.end(), id)) continue;
    if (!is_runner_or_gone(entry->d_name)) return false;
  }
  return true;
}

}  // namespace byteps
