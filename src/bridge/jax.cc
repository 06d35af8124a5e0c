// libbyteps_jax.so: an exchange as a custom call of XLA, for jit of JAX and of TensorFlow.
//
// The handler submits the tensor and returns a future, which the bridge's thread completes: XLA goes on with everything
// that does not need the result, and keeps input and output in memory until then. The headers are version 0.1 of the
// interface, which every runtime since accepts (third_party/xla_ffi/README.md).
//
// Attributes, all of them static in the compiled program; numbers are 64-bit, see byteps_tensor for their meaning:
//   name       string, without NUL
//   kind       byteps_dtype of what travels
//   width      so many elements of that kind make one of the buffer's: 2 for complex, the bytes of one in a broadcast
//   operation, root, priority, scale (a double), root_only (0 or 1)
//   members    array of ranks; empty: all
// One operand, one result. The result may have another shape where root_only gives this rank nothing.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/bridge.h"
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

// What the bridge gives back at the end.
struct Pending {
  ffi::Promise promise;
  std::string name;
};

// Completes the Pending that is `context`, and frees it.
void complete(void* context, int code, const char* message) {
  const std::unique_ptr<Pending> pending(static_cast<Pending*>(context));
  byteps::bridge::flight().end(pending->name);
  if (code == BYTEPS_OK) {
    pending->promise.SetAvailable();
  } else if (code == BYTEPS_MISMATCH) {
    byteps::bridge::flight().fail_later(std::move(pending->promise),
                                        ffi::Error(error_code_of(code), message));
  } else {
    pending->promise.SetError(ffi::Error(error_code_of(code), message));
  }
}

// The buffer's dimensions, and one more for elements that travel as several.
std::vector<uint64_t> shape_of(const ffi::AnyBuffer& buffer, int64_t width) {
  const auto dimensions = buffer.dimensions();
  std::vector<uint64_t> shape(dimensions.begin(), dimensions.end());
  if (width > 1) shape.push_back(static_cast<uint64_t>(width));
  return shape;
}

ffi::Future exchange(ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> output,
                     std::string_view name, int64_t kind, int64_t width, int64_t operation,
                     int64_t root, int64_t priority, int64_t root_only, double scale,
                     ffi::Span<const int64_t> members) {
  const std::vector<uint64_t> shape = shape_of(input, width);
  const std::vector<uint32_t> ranks(members.begin(), members.end());
  byteps_tensor tensor{};
  tensor.struct_bytes = sizeof tensor;
  tensor.dtype = static_cast<uint32_t>(kind);
  tensor.input = input.untyped_data();
  tensor.output = output->untyped_data();
  tensor.element_count = input.element_count() * static_cast<uint64_t>(width);
  tensor.operation = static_cast<uint32_t>(operation);
  tensor.root = static_cast<uint32_t>(root);
  tensor.priority = static_cast<int32_t>(priority);
  tensor.flags = root_only != 0 ? BYTEPS_ROOT_ONLY : 0;
  tensor.shape = shape.data();
  tensor.dimension_count = static_cast<uint32_t>(shape.size());
  tensor.scale = scale;
  tensor.members = ranks.empty() ? nullptr : ranks.data();
  tensor.member_count = static_cast<uint32_t>(ranks.size());

  auto pending = std::make_unique<Pending>();
  pending->name = name;
  ffi::Future future(pending->promise);
  if (!byteps::bridge::flight().begin(pending->name)) {
    pending->promise.SetError(ffi::Error(
        ffi::ErrorCode::kInvalidArgument,
        "tensor '" + pending->name +
            "' is used twice at the same time, so that ranks could mix up the two: give each use a "
            "name of its own. A jitted function that is called twice within another one uses its "
            "names twice; several threads that run the same function do, too"));
    return future;
  }
  tensor.name = pending->name.c_str();
  byteps_error error{};
  const int code = byteps::bridge::bridge().submit(tensor, complete, pending.get(), &error);
  Pending* const submitted = pending.release();  // complete() frees it
  if (code != BYTEPS_OK) complete(submitted, code, error.message);
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
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("operation")
                                  .Attr<int64_t>("root")
                                  .Attr<int64_t>("priority")
                                  .Attr<int64_t>("root_only")
                                  .Attr<double>("scale")
                                  .Attr<ffi::Span<const int64_t>>("members"));
