// libbyteps_jax.so: exchanges as a custom call of XLA, for jit.
//
// The handler submits one tensor or several and returns a future, which the bridge's thread completes: XLA goes on with
// everything that does not need the results, and keeps inputs and outputs in memory until then. The headers are version
// 0.1 of the interface, which every runtime since accepts (third_party/xla_ffi/README.md).
//
// As many operands as results. Attributes, all of them static in the compiled program:
//   names      a string: the names, with a NUL between them
//   widths     for each operand, how many elements of what travels make one of the buffer's: 2 for complex, the bytes
//              of one in a broadcast
//   exchanges  a string: what exchange.h says of each, with a space between them
// A result may have another shape than its operand where the root alone gets it.
//
// Several tensors in one call are started together, while XLA may run custom calls one after another, in an order that
// differs between ranks when their programs do: what belongs to one collective is one call.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/bridge.h"
#include "bridge/exchange.h"
#include "bridge/xla_flight.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

ffi::ErrorCode error_code_of(int code) {
  switch (code) {
    case BYTEPS_INVALID_ARGUMENT:
    case BYTEPS_MISMATCH:
      return ffi::ErrorCode::kInvalidArgument;
    case BYTEPS_TIMEOUT:
      return ffi::ErrorCode::kDeadlineExceeded;
    case BYTEPS_DISCONNECTED:
      return ffi::ErrorCode::kUnavailable;
    case BYTEPS_UNSUPPORTED:
      return ffi::ErrorCode::kUnimplemented;
    case BYTEPS_CANCELLED:
      return ffi::ErrorCode::kCancelled;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

// One custom call: its future ends when all its exchanges have.
class Call {
 public:
  explicit Call(std::size_t count) : left_(count) {}

  ffi::Future future() const { return ffi::Future(promise_); }

  void end_one(int code, const char* message) {
    {
      const std::lock_guard lock(mutex_);
      if (code_ == BYTEPS_OK && code != BYTEPS_OK) {
        code_ = code;
        message_ = message;
      }
      if (--left_ > 0) return;
    }
    if (code_ == BYTEPS_OK) {
      promise_.SetAvailable();
    } else if (code_ == BYTEPS_MISMATCH) {
      byteps::bridge::flight().fail_later(std::move(promise_),
                                          ffi::Error(error_code_of(code_), message_));
    } else {
      promise_.SetError(ffi::Error(error_code_of(code_), message_));
    }
  }

 private:
  ffi::Promise promise_;
  std::mutex mutex_;  // guards what follows until left_ is 0
  std::size_t left_;
  int code_ = BYTEPS_OK;  // of the first failure
  std::string message_;
};

// One exchange of a call: what the bridge gives back at its end.
struct Pending {
  std::shared_ptr<Call> call;
  std::string name;
};

void end_exchange(void* context, int code, const char* message) {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(context));
  byteps::bridge::flight().end(pending->name);
  pending->call->end_one(code, message);
}

void submit(std::shared_ptr<Call> call, std::string_view name, byteps_tensor tensor) {
  byteps_error error{};
  if (byteps::bridge::bridge().refuse_in_child(&error) != BYTEPS_OK) {
    return call->end_one(BYTEPS_INVALID_ARGUMENT, error.message);
  }
  auto pending = std::make_unique<Pending>(Pending{std::move(call), std::string(name)});
  if (!byteps::bridge::flight().begin(pending->name)) {
    const std::string message =
        "tensor '" + pending->name +
        "' is used twice at the same time, so that ranks could mix up the two: give each use a "
        "name "
        "of its own. A jitted function that is called twice within another one uses its names "
        "twice; several threads that run the same function do, too";
    pending->call->end_one(BYTEPS_INVALID_ARGUMENT, message.c_str());
    return;
  }
  tensor.name = pending->name.c_str();
  const int code = byteps::bridge::bridge().submit(tensor, end_exchange, pending.get(), &error);
  Pending* const submitted = pending.release();  // end_exchange() frees it
  if (code != BYTEPS_OK) end_exchange(submitted, code, error.message);
}

// The buffer's dimensions, and one more for elements that travel as several.
std::vector<uint64_t> shape_of(const ffi::AnyBuffer& buffer, int64_t width) {
  const auto dimensions = buffer.dimensions();
  std::vector<uint64_t> shape(dimensions.begin(), dimensions.end());
  if (width > 1) shape.push_back(static_cast<uint64_t>(width));
  return shape;
}

// Takes the text up to the next NUL, or all of it, off `names`.
std::string_view take_name(std::string_view& names) {
  const std::size_t end = names.find('\0');
  const std::string_view name = names.substr(0, end);
  names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  return name;
}

using Numbers = ffi::Span<const int64_t>;

ffi::Future exchange(ffi::RemainingArgs inputs, ffi::RemainingRets outputs, std::string_view names,
                     Numbers widths, std::string_view exchanges) {
  const auto call = std::make_shared<Call>(inputs.size());
  ffi::Future future = call->future();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string_view name = take_name(names);
    const auto input = inputs.get<ffi::AnyBuffer>(i);
    auto output = outputs.get<ffi::AnyBuffer>(i);
    const auto what = byteps::bridge::Exchange::take(exchanges);
    if (!input.has_value() || !output.has_value() || !what.has_value()) {
      call->end_one(BYTEPS_INVALID_ARGUMENT,
                    "an operand of byteps_exchange has no result, or no exchange");
      continue;
    }
    const std::vector<uint64_t> shape = shape_of(*input, widths[i]);
    byteps_tensor tensor = what->tensor();
    tensor.input = input->untyped_data();
    tensor.output = (*output)->untyped_data();
    tensor.element_count = input->element_count() * static_cast<uint64_t>(widths[i]);
    tensor.shape = shape.data();
    tensor.dimension_count = static_cast<uint32_t>(shape.size());
    submit(call, name, tensor);
  }
  return future;
}

}  // namespace

extern "C" {
BYTEPS_API XLA_FFI_Error* byteps_exchange(XLA_FFI_CallFrame* call_frame);
// Whether compiled programs run one after another (Flight::set_one_at_a_time).
BYTEPS_API void byteps_one_at_a_time(int value);
}

void byteps_one_at_a_time(int value) {
  byteps::bridge::flight().set_one_at_a_time(value != 0);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(byteps_exchange, exchange,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("names")
                                  .Attr<Numbers>("widths")
                                  .Attr<std::string_view>("exchanges"));
