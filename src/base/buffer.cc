#include "base/buffer.h"

#include <bit>
#include <cstdlib>
#include <new>

#include "base/check.h"

namespace byteps {

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  const std::size_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, rounded)));
  if (bytes > 0 && memory_ == nullptr) throw std::bad_alloc();
}

void Buffer::Free::operator()(std::byte* memory) const {
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
  for (auto& loans : idle_) {
    for (BufferRef::Loan* loan : loans) delete loan;
  }
}

BufferRef BufferPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kBufferAlignment));
  const auto size_class = static_cast<std::size_t>(std::countr_zero(size));
  if (idle_.size() <= size_class) idle_.resize(size_class + 1);
  auto& loans = idle_[size_class];
  BufferRef::Loan* loan = nullptr;
  if (loans.empty()) {
    loan = new BufferRef::Loan{Buffer(size), 0, this};
  } else {
    loan = loans.back();
    loans.pop_back();
    idle_bytes_ -= size;
  }
  lent_bytes_ += size;
  return BufferRef(loan);
}

void BufferPool::give_back(BufferRef::Loan* loan) {
  const std::size_t size = loan->buffer.bytes();
  lent_bytes_ -= size;
  idle_bytes_ += size;
  idle_[static_cast<std::size_t>(std::countr_zero(size))].push_back(loan);
}

}  // namespace byteps
