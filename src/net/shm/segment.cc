#include "net/shm/segment.h"

#include <bit>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; missing in older headers
#endif

namespace byteps::shm {
namespace {

constexpr int kMakersSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kOpenersSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// Where a file may not be so long, the kernel does not only refuse: it sends SIGXFSZ, which ends the process.
bool file_may_be(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes;
}

Status no_memory(std::size_t bytes, int error_number) {
  return system_error("no shared memory of " + std::to_string(bytes) + " bytes", error_number);
}

Status wrong_memory(const char* what) {
  return {Code::kDisconnected, std::string("its shared memory is not as it must be: ") + what};
}

// memfd_create() by its number: glibc has a function for it since 2.27 only.
int memory_file(const char* name) {
  return static_cast<int>(::syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

}  // namespace

bool Segment::is_ring_size(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kRingBytesMin && bytes <= kRingBytesMax;
}

Result<Segment> Segment::create(std::size_t ring_bytes) {
  CHECK(is_ring_size(ring_bytes)) << ring_bytes;
  const int descriptor = memory_file("byteps");
  if (descriptor < 0) return system_error("memfd_create", errno);
  Segment segment(descriptor, ring_bytes);
  if (!file_may_be(segment.file_bytes())) return no_memory(segment.file_bytes(), EFBIG);
  const int refused = ::posix_fallocate(descriptor, 0, static_cast<off_t>(segment.file_bytes()));
  if (refused != 0) return no_memory(segment.file_bytes(), refused);
  if (::fcntl(descriptor, F_ADD_SEALS, kMakersSeals) != 0)
    return system_error("F_ADD_SEALS", errno);
  if (Status status = segment.map(); !status.is_ok()) return status;
  new (segment.base_) RingControl[2]{};
  return segment;
}

Result<Segment> Segment::open(int descriptor) {
  Segment segment(descriptor, 0);
  struct stat file {};
  if (::fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode)) return wrong_memory("no file");
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kMakersSeals) != kMakersSeals) return wrong_memory("not sealed");
  const auto bytes = static_cast<std::size_t>(file.st_size);
  if (bytes < kControlBytes || !is_ring_size((bytes - kControlBytes) / 2) || bytes % 2 != 0) {
    return wrong_memory("of another size");
  }
  segment.ring_bytes_ = (bytes - kControlBytes) / 2;
  if (Status status = segment.map(); !status.is_ok()) return status;
  if (::fcntl(descriptor, F_ADD_SEALS, kOpenersSeals) != 0)
    return system_error("F_ADD_SEALS", errno);
  segment.close_descriptor();
  return segment;
}

Status Segment::seal_checked() {
  const int seals = ::fcntl(descriptor_, F_GET_SEALS);
  const int wanted = kMakersSeals | kOpenersSeals;
  if (seals < 0 || (seals & wanted) != wanted) return wrong_memory("not sealed");
  close_descriptor();
  return Status::ok();
}

Status Segment::map() {
  void* const reserved = ::mmap(nullptr, mapped_bytes(), PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return system_error("mmap", errno);
  base_ = static_cast<std::byte*>(reserved);
  std::byte* at = base_;
  const auto place = [&](std::size_t from, std::size_t bytes) {
    void* const placed =
        ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               descriptor_, static_cast<off_t>(from));
    at += bytes;
    return placed != MAP_FAILED;
  };
  const std::size_t second = kControlBytes + ring_bytes_;
  if (!place(0, kControlBytes) || !place(kControlBytes, ring_bytes_) ||
      !place(kControlBytes, ring_bytes_) || !place(second, ring_bytes_) ||
      !place(second, ring_bytes_)) {
    return system_error("mmap", errno);
  }
  // A forked child has no use for it, and would keep it alive.
  (void)::madvise(base_, mapped_bytes(), MADV_DONTFORK);
  return Status::ok();
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      ring_bytes_(other.ring_bytes_),
      base_(std::exchange(other.base_, nullptr)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(ring_bytes_, other.ring_bytes_);
  std::swap(base_, other.base_);
  return *this;
}

Segment::~Segment() {
  close_descriptor();
  if (base_ != nullptr) ::munmap(base_, mapped_bytes());
}

void Segment::close_descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

RingMemory Segment::ring(std::size_t index) const {
  return {reinterpret_cast<RingControl*>(base_) + index,
          base_ + kControlBytes + 2 * index * ring_bytes_, ring_bytes_};
}

}  // namespace byteps::shm
