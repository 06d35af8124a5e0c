// libbyteps_mxnet.so: exchanges as operations of MXNet's dependency engine.
//
// The engine runs an operation when all earlier writers of its arrays are done, and keeps later readers waiting until
// the operation says that it is complete. So an exchange begins when its gradient exists, the caller goes on at once,
// and whoever reads the result waits for it. Nothing here takes Python's lock.
//
// Nothing of MXNet is linked or included: Python hands in the addresses of a few functions of libmxnet.so's C interface
// (Functions), and the layouts below are those of MXNet 1.9.1 (include/mxnet/engine.h, dlpack.h), the last release of
// 1.x.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "bridge/bridge.h"
#include "bridge/foreign_layouts.h"
#include "byteps/byteps.h"

namespace byteps::bridge {
namespace {

// ---- what MXNet has

// mxnet::engine::CallbackOnComplete. `error` is a const dmlc::Error*, which is a std::runtime_error.
struct OnComplete {
  void (*callback)(void* engine, void* parameter, const void* error);
  void* engine;
  void* parameter;
};

struct Context {  // mxnet::Context
  int32_t device_type;
  int32_t device_id;
};
constexpr Context kCpu{1, 0};

// mxnet::FnProperty::kCPUPrioritized: a thread and a queue by priority of its own, so that an exchange need not wait
// until the thread that computes is idle.
constexpr int32_t kPrioritized = 3;

struct DlTensor {  // DLManagedTensor of DLPack 0.2; of DLTensor only what is read
  void* data;
  Context device;
  int32_t dimension_count;
  uint32_t type;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
  void* manager;
  void (*deleter)(DlTensor*);
};

extern "C" {
// Addresses out of libmxnet.so. Those that return int return 0 when all went well.
struct byteps_mxnet_functions {
  int (*push_async)(void (*run)(void*, void*, void*), void* parameter, void (*deleter)(void*),
                    const void* context, void** inputs, int input_count, void** outputs,
                    int output_count, const void* property, int priority, const char* name,
                    bool wait);         // MXEnginePushAsyncND
  int (*copy_handle)(void*, void**);    // MXShallowCopyNDArray
  int (*free_handle)(void*);            // MXNDArrayFree
  int (*to_dlpack)(void*, DlTensor**);  // MXNDArrayToDLPack
  const char* (*last_error)();          // MXGetLastError
  void (*reorder)(
      void*);  // mxnet::NDArray::Reorder2DefaultAsync() const; NULL in a build without oneDNN
};
}

// ---- exchanges

// Counts operations from their push until the engine has forgotten them.
class Pending {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }

  void remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) idle_.notify_all();
  }

  bool wait_until_none(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, timeout, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  size_t count_ = 0;
};

struct Shim {
  byteps_mxnet_functions mxnet{};
  Pending pending;
};

// A shim is one per process, as the engine is: its functions are reached from callbacks of the engine without any
// context but an operation's. Never destroyed: the engine's threads may outlive static objects.
Shim& shim() {
  static Shim* const only = new Shim;
  return *only;
}

// One array of an operation, and its memory while the operation runs.
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  ~Array() {
    if (lent_ != nullptr) lent_->deleter(lent_);
    if (handle_ != nullptr) shim().mxnet.free_handle(handle_);
  }

  // Another handle for the same memory: the caller's may be freed before the engine comes to this operation.
  int open(void* handle) {
    if (const int code = shim().mxnet.copy_handle(handle, &handle_); code != 0) return code;
    // Convolutions leave arrays in oneDNN's own layout. This is an operation of the engine too, and so goes before
    // ours.
    if (shim().mxnet.reorder != nullptr) shim().mxnet.reorder(handle_);
    return 0;
  }

  // Within the operation. MXNDArrayGetData would wait there for the operation itself, if the layout is oneDNN's; this
  // one refuses.
  int lend() { return shim().mxnet.to_dlpack(handle_, &lent_); }

  void* handle() const { return handle_; }
  void* address() const { return static_cast<std::byte*>(lent_->data) + lent_->byte_offset; }

 private:
  void* handle_ = nullptr;
  DlTensor* lent_ = nullptr;
};

class Operation {
 public:
  Operation(const byteps_tensor& tensor, bool has_input)
      : tensor_(tensor), name_(tensor.name), has_input_(has_input) {
    if (tensor.shape != nullptr) shape_.assign(tensor.shape, tensor.shape + tensor.dimension_count);
    if (tensor.members != nullptr)
      members_.assign(tensor.members, tensor.members + tensor.member_count);
    tensor_.name = name_.c_str();
    tensor_.shape = tensor.shape == nullptr ? nullptr : shape_.data();
    tensor_.members = tensor.members == nullptr ? nullptr : members_.data();
    if (tensor.codec != nullptr) codec_ = *tensor.codec;
    tensor_.codec = tensor.codec == nullptr ? nullptr : &codec_;
    shim().pending.add();
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { shim().pending.remove(); }

  int open(void* input, void* output) {
    if (const int code = output_.open(output); code != 0) return code;
    return has_input_ ? input_.open(input) : 0;
  }

  // Hands the exchange to the engine, which owns it from now on, also when this fails.
  static int push(std::unique_ptr<Operation> operation) {
    Operation* const raw = operation.release();
    void* input = raw->input_.handle();
    void* output = raw->output_.handle();
    return shim().mxnet.push_async(
        [](void*, void* on_complete, void* self) {
          static_cast<Operation*>(self)->run(*static_cast<const OnComplete*>(on_complete));
        },
        raw, [](void* self) { delete static_cast<Operation*>(self); }, &kCpu, &input,
        raw->has_input_ ? 1 : 0, &output, 1, &kPrioritized, raw->tensor_.priority,
        "byteps_push_pull", false);
  }

 private:
  void run(const OnComplete& on_complete) noexcept {
    on_complete_ = on_complete;
    if (output_.lend() != 0 || (has_input_ && input_.lend() != 0)) {
      return end(BYTEPS_INVALID_ARGUMENT, shim().mxnet.last_error());
    }
    tensor_.output = output_.address();
    tensor_.input = has_input_ ? input_.address() : tensor_.output;
    byteps_error error{};
    const int code = bridge().submit(
        tensor_,
        [](void* self, int ended, const char* message) {
          static_cast<Operation*>(self)->end(ended, message);
        },
        this, &error);
    if (code != BYTEPS_OK) end(code, error.message);
  }

  // The engine may delete this exchange within the callback.
  void end(int code, const char* message) noexcept {
    const OnComplete complete = on_complete_;
    if (code == BYTEPS_OK) {
      complete.callback(complete.engine, complete.parameter, nullptr);
      return;
    }
    const ForeignError error(message);
    complete.callback(complete.engine, complete.parameter, &error);
  }

  byteps_tensor tensor_;
  std::string name_;
  std::vector<uint64_t> shape_;
  std::vector<uint32_t> members_;
  byteps_codec codec_{};
  bool has_input_;
  Array input_;
  Array output_;
  OnComplete on_complete_{};
};

}  // namespace

extern "C" {

// Once, before anything else.
BYTEPS_API void byteps_mxnet_use(const byteps_mxnet_functions* functions) {
  shim().mxnet = *functions;
}

// Pushes one exchange onto the engine: from `input`, an NDArrayHandle or NULL (in place), into `output`. Of `tensor`
// all but the addresses counts, and is copied. Never blocks. 0, or -1 with MXNet's own text in MXGetLastError. What
// goes wrong later is raised by MXNet where somebody next waits for the output.
BYTEPS_API int byteps_mxnet_push_pull(void* input, void* output, const byteps_tensor* tensor) {
  auto operation = std::make_unique<Operation>(*tensor, input != nullptr);
  if (const int code = operation->open(input, output); code != 0) return code;
  return Operation::push(std::move(operation));
}

// Waits until no exchange is under way: 0, or BYTEPS_AGAIN after timeout_ns.
BYTEPS_API int byteps_mxnet_drain(int64_t timeout_ns) {
  return shim().pending.wait_until_none(std::chrono::nanoseconds(timeout_ns)) ? BYTEPS_OK
                                                                              : BYTEPS_AGAIN;
}
}

}  // namespace byteps::bridge
