// Two objects of the C++ standard library that TensorFlow and MXNet are built with (libstdc++, on Linux), as they lie
// in memory. Their C interfaces hand one out and ask for the other, and this library may be built with another standard
// library. tests/bridge/foreign_layouts_test.cc compares both with the real ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace byteps::bridge {

// A copy of a std::function<void()>: two words of storage, the manager, the invoker; so since GCC 4. The original is
// only read while the copy is made. To be run once, or what it captured is kept.
class ForeignFunction {
 public:
  explicit ForeignFunction(const void* original) {
    const auto& source = *static_cast<const ForeignFunction*>(original);
    source.manager_(storage_, source.storage_, kClone);
    manager_ = source.manager_;
    invoker_ = source.invoker_;
  }

  // Once, and last: what it captured is freed.
  void run() {
    invoker_(storage_);
    manager_(storage_, storage_, kDestroy);
  }

 private:
  static constexpr int kClone = 2;
  static constexpr int kDestroy = 3;

  alignas(void*) char storage_[2 * sizeof(void*)];
  bool (*manager_)(void* target, const void* source, int what);
  void (*invoker_)(const void* storage);
};
static_assert(sizeof(ForeignFunction) == 4 * sizeof(void*));

// A std::runtime_error, of which others make copies: a table of virtual functions and a string that counts its owners
// (which it does in either of libstdc++'s ABIs). It is given a string that never leaves, because nobody here can tell
// when the last copy has gone. So the memory of a failure's text stays.
class ForeignError {
 public:
  explicit ForeignError(const char* text) {
    const std::size_t length = std::strlen(text);
    auto* memory = static_cast<std::byte*>(::operator new(sizeof(Header) + length + 1));
    new (memory) Header{length, length, 1 << 30};
    text_ = reinterpret_cast<char*>(memory + sizeof(Header));
    std::memcpy(text_, text, length + 1);
  }

 private:
  struct Header {
    std::size_t length;
    std::size_t capacity;
    std::int32_t further_owners;
  };
  // Only read through a copy's own table; the original has none.
  [[maybe_unused]] const void* virtual_table_ = nullptr;
  char* text_;
};
static_assert(sizeof(ForeignError) == 2 * sizeof(void*));

}  // namespace byteps::bridge
