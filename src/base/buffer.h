// Memory that is lent: an aligned Buffer, a pool of equal ones, and BufferRef, the proof of a loan.
//
// Ownership: a BufferPool owns its Buffers. A BufferRef counts who still uses one; when the last
// ref goes, the Buffer is back in the pool. All of it belongs to one Actor (one thread): no lock,
// no atomic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace byteps {

inline constexpr std::size_t kBufferAlignment = 64;

// Where the memory of buffers comes from, if not from the C library: from memory that a network device may read, say.
// What it gives is kBufferAlignment-aligned and comes back with the size it was asked for.
class BufferSource {
 public:
  virtual ~BufferSource() = default;
  virtual std::byte* take(std::size_t bytes) = 0;  // null: there is none
  virtual void give_back(std::byte* memory, std::size_t bytes) = 0;
};

// kBufferAlignment-aligned memory, uninitialised, freed with the object.
class Buffer {
 public:
  Buffer() = default;
  // Of the C library when there is no source, which must outlive it. bad_alloc when there is none.
  explicit Buffer(std::size_t bytes, BufferSource* source = nullptr);
  std::span<std::byte> span() { return {memory_.get(), bytes_}; }
  std::span<const std::byte> span() const { return {memory_.get(), bytes_}; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    BufferSource* source;  // null and 0 in a Buffer of nothing
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

class BufferPool;

// A pool's record of one Buffer that it lends; BufferRef and BufferPool alone use it.
struct BufferLoan {
  Buffer buffer;
  std::uint32_t holders = 0;
  BufferPool* pool = nullptr;
  BufferLoan* next_idle = nullptr;  // a list: coming back never needs memory
};

// A shared loan of one Buffer. Copying makes a second holder; the last one to go returns it.
class BufferRef {
 public:
  BufferRef() = default;
  explicit BufferRef(BufferLoan* loan) : loan_(loan) { hold(); }
  BufferRef(const BufferRef& other) : loan_(other.loan_) { hold(); }
  BufferRef(BufferRef&& other) noexcept : loan_(std::exchange(other.loan_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(loan_, other.loan_);
    return *this;
  }
  ~BufferRef() { release(); }

  explicit operator bool() const { return loan_ != nullptr; }
  std::span<std::byte> span() const;
  // Asks the CPU for the record of the loan, which giving back needs.
  void prefetch() const { __builtin_prefetch(loan_, 1); }

 private:
  void hold() {
    if (loan_ != nullptr) ++loan_->holders;
  }
  void release();
  BufferLoan* loan_ = nullptr;
};

// Buffers in size classes (powers of two of at least 64 bytes), kept for the next taker.
// Must outlive its refs (checked at destruction).
class BufferPool {
 public:
  BufferPool() = default;
  explicit BufferPool(std::shared_ptr<BufferSource> source) : source_(std::move(source)) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  // A buffer whose span() has at least `bytes` bytes (0 gives 64). Contents are undefined.
  BufferRef take(std::size_t bytes);

  // The last ref has gone.
  void give_back(BufferLoan* loan);

  // Frees what lies idle. take() does so by itself before it fails for want of memory (bad_alloc).
  void trim();

  std::size_t lent_bytes() const { return lent_bytes_; }
  std::size_t idle_bytes() const { return idle_bytes_; }

 private:
  std::shared_ptr<BufferSource> source_;  // null: the C library
  std::vector<BufferLoan*> idle_;         // by size class: the first of those that lie idle
  std::size_t lent_bytes_ = 0;
  std::size_t idle_bytes_ = 0;
};

}  // namespace byteps
