#include "net/rdma/memory.h"

#include <bit>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

namespace byteps::rdma {
namespace {

constexpr std::size_t kRingBytesMin = 64 << 10;
constexpr std::size_t kRingBytesMax = 64 << 20;

std::string limit_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return " (now " + std::to_string(limit.rlim_cur >> 10) + " KiB)";
}

}  // namespace

bool may_lock_all_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) return true;
  // The kernel asks for the right in the first user namespace, whose map is the identity.
  std::uint64_t inside = 1, outside = 1, count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  if (inside != 0 || outside != 0 || count != 0xffffffff) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[0].effective & (1U << CAP_IPC_LOCK)) != 0;
}

bool is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kRingBytesMin && bytes <= kRingBytesMax;
}

Status cannot_register(const Device& device, std::size_t bytes, int error_number,
                       const char* or_else) {
  std::string what = "RDMA device " + device.text() + " does not register " +
                     std::to_string(bytes >> 10) + " KiB of memory";
  if (error_number == ENOMEM || error_number == EAGAIN || error_number == EPERM) {
    what += "; raise the limit of locked memory" + limit_text() +
            ": ulimit -l unlimited, docker run --ulimit memlock=-1, LimitMEMLOCK=infinity" +
            or_else;
  }
  return system_error(what, error_number);
}

Result<RingMemory> RingMemory::create(Device& device, std::size_t bytes, bool remote_writes) {
  CHECK(is_ring_size(bytes)) << bytes;
  RingMemory memory;
  memory.verbs_ = &device.verbs();
  memory.bytes_ = bytes;
  if (Status status = memory.map(); !status.is_ok()) return status;
  const std::uint32_t access =
      remote_writes ? abi::kAccessLocalWrite | abi::kAccessRemoteWrite : abi::kAccessLocalWrite;
  memory.region_ =
      device.verbs().reg_mr(device.domain(), memory.base_, bytes, static_cast<int>(access));
  if (memory.region_ == nullptr) {
    return cannot_register(device, bytes, errno, "; or make BYTEPS_RDMA_RING_BYTES smaller");
  }
  return memory;
}

Status RingMemory::map() {
  const int file = static_cast<int>(::syscall(SYS_memfd_create, "byteps-rdma", MFD_CLOEXEC));
  if (file < 0) return system_error("memfd_create", errno);
  // The kernel does not only refuse what is larger than the limit of files: it sends SIGXFSZ.
  rlimit limit{};
  const bool too_large = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes_;
  const int refused = too_large ? EFBIG : ::posix_fallocate(file, 0, static_cast<off_t>(bytes_));
  void* at = MAP_FAILED;
  if (refused == 0) {
    at = ::mmap(nullptr, 2 * bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  bool mapped = at != MAP_FAILED;
  if (mapped) {
    base_ = static_cast<std::byte*>(at);
    for (std::byte* place : {base_, base_ + bytes_}) {
      mapped = mapped && ::mmap(place, bytes_, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) != MAP_FAILED;
    }
  }
  const int error_number = errno;
  ::close(file);
  if (refused != 0 || !mapped) {
    return system_error("no memory of " + std::to_string(bytes_) + " bytes for RDMA",
                        refused != 0 ? refused : error_number);
  }
  (void)::madvise(base_, 2 * bytes_, MADV_DONTFORK);
  return Status::ok();
}

RingMemory::RingMemory(RingMemory&& other) noexcept {
  *this = std::move(other);
}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(verbs_, other.verbs_);
  std::swap(region_, other.region_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RingMemory::~RingMemory() {
  if (region_ != nullptr) verbs_->dereg_mr(region_);
  if (base_ != nullptr) ::munmap(base_, 2 * bytes_);
}

}  // namespace byteps::rdma
