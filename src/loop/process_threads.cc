#include "loop/process_threads.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace byteps {

namespace {

// Of a worker's Runners and Executors. Whole names: a program called byteps-train has given its own to all its threads.
constexpr std::array<std::string_view, 8> kOwnNames = {
    "byteps-worker\n", "byteps-device\n", "byteps-relay\n", "byteps-timeline\n",
    "byteps-log\n",    "byteps-flight\n", "byteps-names\n", "byteps-place\n"};

// One that has ended meanwhile is no other thread.
bool is_own_or_gone(const char* id) {
  const std::string path = "/proc/self/task/" + std::string(id) + "/comm";
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return access(("/proc/self/task/" + std::string(id)).c_str(), F_OK) != 0;
  char name[32] = {};
  const bool read = std::fgets(name, sizeof name, file) != nullptr;
  std::fclose(file);
  return !read || std::find(kOwnNames.begin(), kOwnNames.end(), name) != kOwnNames.end();
}

}  // namespace

pid_t kernel_thread() {
  thread_local const auto self = static_cast<pid_t>(syscall(SYS_gettid));  // gettid(): glibc 2.30
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
    if (id == getpid() || !is_own_or_gone(entry->d_name)) return false;  // main() is the user's
  }
  return true;
}

}  // namespace byteps
