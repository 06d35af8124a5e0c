#include "base/buffer.h"

#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/check.h"

namespace byteps {

Buffer::Buffer(std::size_t bytes, BufferSource* source)
    : memory_(nullptr, Free{source, bytes}), bytes_(bytes) {
  const std::size_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  memory_.reset(source != nullptr
                    ? source->take(bytes)
                    : static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, rounded)));
  if (bytes > 0 && memory_ == nullptr) throw std::bad_alloc();
}

void Buffer::Free::operator()(std::byte* memory) const {
  if (source != nullptr) return source->give_back(memory, bytes);
  std::free(memory);
}

std::span<std::byte> BufferRef::span() const {
  CHECK(loan_ != nullptr) << "the span of an empty BufferRef";
  return loan_->buffer.span();
}

void BufferRef::release() {
  if (loan_ != nullptr && --loan_->holders == 0) loan_->pool->give_back(loan_);
  loan_ = nullptr;
}

BufferPool::~BufferPool() {
  CHECK_EQ(lent_bytes_, 0U) << "bytes still lent when the pool ended";
  trim();
}

BufferRef BufferPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kBufferAlignment));
  const auto size_class = static_cast<std::size_t>(std::countr_zero(size));
  if (idle_.size() <= size_class) idle_.resize(size_class + 1);
  BufferLoan* loan = idle_[size_class];
  if (loan == nullptr) {
    try {
      loan = new BufferLoan{Buffer(size, source_.get()), 0, this, nullptr};
    } catch (const std::bad_alloc&) {
      trim();  // what lies idle is of other sizes
      loan = new BufferLoan{Buffer(size, source_.get()), 0, this, nullptr};
    }
  } else {
    idle_[size_class] = loan->next_idle;
    idle_bytes_ -= size;
  }
  lent_bytes_ += size;
  return BufferRef(loan);
}

void BufferPool::trim() {
  for (BufferLoan*& first : idle_) {
    while (first != nullptr) delete std::exchange(first, first->next_idle);
  }
  idle_bytes_ = 0;
}

void BufferPool::give_back(BufferLoan* loan) {
  const std::size_t size = loan->buffer.bytes();
  lent_bytes_ -= size;
  idle_bytes_ += size;
  BufferLoan*& first = idle_[static_cast<std::size_t>(std::countr_zero(size))];
  loan->next_idle = std::exchange(first, loan);
}

}  // namespace byteps
