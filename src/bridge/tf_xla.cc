// What takes the place of the op in a function that XLA compiles (jit_compile=True): a custom call, asynchronous, in
// the XLA that TensorFlow brings along. python/byteps/tensorflow/xla.py writes the calls.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bridge/exchange.h"
#include "bridge/tf_shim.h"
#include "bridge/xla_flight.h"
#include "xla/ffi/api/ffi.h"

namespace byteps::bridge {
namespace {

namespace ffi = ::xla::ffi;

constexpr const char* kTarget = "byteps_push_pull";

CoreDtype core_dtype(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F32:
      return {BYTEPS_FLOAT32, 1};
    case ffi::DataType::F64:
      return {BYTEPS_FLOAT64, 1};
    case ffi::DataType::F16:
      return {BYTEPS_FLOAT16, 1};
    case ffi::DataType::BF16:
      return {BYTEPS_BFLOAT16, 1};
    case ffi::DataType::U8:
      return {BYTEPS_UINT8, 1};
    case ffi::DataType::S8:
      return {BYTEPS_INT8, 1};
    case ffi::DataType::U16:
      return {BYTEPS_UINT16, 1};
    case ffi::DataType::S16:
      return {BYTEPS_INT16, 1};
    case ffi::DataType::U32:
      return {BYTEPS_UINT32, 1};
    case ffi::DataType::S32:
      return {BYTEPS_INT32, 1};
    case ffi::DataType::U64:
      return {BYTEPS_UINT64, 1};
    case ffi::DataType::S64:
      return {BYTEPS_INT64, 1};
    case ffi::DataType::PRED:
      return {BYTEPS_BOOL, 1};
    case ffi::DataType::C64:
      return {BYTEPS_FLOAT32, 2, BYTEPS_LOGICAL_COMPLEX64};
    case ffi::DataType::C128:
      return {BYTEPS_FLOAT64, 2, BYTEPS_LOGICAL_COMPLEX128};
    default:
      return {0, 0};
  }
}

ffi::ErrorCode error_code(int code) {
  switch (code) {
    case BYTEPS_INVALID_ARGUMENT:
    case BYTEPS_MISMATCH:
      return ffi::ErrorCode::kInvalidArgument;
    case BYTEPS_AGAIN:
      return ffi::ErrorCode::kResourceExhausted;
    case BYTEPS_TIMEOUT:
      return ffi::ErrorCode::kDeadlineExceeded;
    case BYTEPS_DISCONNECTED:
    case BYTEPS_CANCELLED:
      return ffi::ErrorCode::kAborted;
    case BYTEPS_UNSUPPORTED:
      return ffi::ErrorCode::kUnimplemented;
    case BYTEPS_SYSTEM:
      return ffi::ErrorCode::kInternal;
    default:
      return ffi::ErrorCode::kUnknown;
  }
}

// On the bridge's thread.
void on_end(void* context, int code, const char* message) {
  const std::unique_ptr<ffi::Promise> promise(static_cast<ffi::Promise*>(context));
  flight().end(kTarget);
  if (code == BYTEPS_OK) {
    promise->SetAvailable();
  } else if (code == BYTEPS_MISMATCH) {
    flight().fail_later(std::move(*promise), ffi::Error(error_code(code), message));
  } else {
    promise->SetError(ffi::Error(error_code(code), message));
  }
}

// One tensor's exchange. XLA keeps both buffers until the future is there.
ffi::Future push_pull_call(ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> output,
                           std::string_view name, std::string_view packed) {
  auto* promise = new ffi::Promise;
  ffi::Future future(*promise);
  const std::optional<Exchange> exchange = Exchange::take(packed);
  Tensor tensor;
  tensor.input = input.untyped_data();
  tensor.output = output->untyped_data();
  tensor.element_count = input.element_count();
  for (int64_t dimension : input.dimensions()) {
    tensor.shape.push_back(static_cast<uint64_t>(dimension));
  }
  const std::string refusal = exchange
                                  ? set_elements(tensor, core_dtype(input.element_type()),
                                                 ffi::ByteWidth(input.element_type()), *exchange)
                                  : "its exchange is none";
  byteps_error error{};
  if (const int code = bridge().refuse_in_child(&error); code != BYTEPS_OK) {
    promise->SetError(ffi::Error(error_code(code), error.message));
    delete promise;
    return future;
  }
  flight().begin(kTarget);
  if (!refusal.empty()) {
    on_end(promise, BYTEPS_INVALID_ARGUMENT, (std::string(name) + ": " + refusal).c_str());
  } else if (const int code =
                 push_pull(tensor, std::string(name), *exchange, on_end, promise, &error);
             code != BYTEPS_OK) {
    on_end(promise, code, error.message);
  }
  return future;
}

XLA_FFI_DEFINE_HANDLER(handler, push_pull_call,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<std::string_view>("tensor_name")
                           .Attr<std::string_view>("exchange"));

}  // namespace
}  // namespace byteps::bridge

// Makes the custom call known to TensorFlow's XLA, once. "" or why there is none; valid for ever.
extern "C" BYTEPS_API const char* byteps_tensorflow_register_xla(void) {
  using byteps::bridge::xla_ffi_api;
  static const std::string problem = [] {
    const auto* xla = static_cast<const XLA_FFI_Api*>(xla_ffi_api());
    if (xla == nullptr) return std::string("this TensorFlow's XLA takes no custom calls");
    XLA_FFI_Error* error = xla::ffi::Ffi::RegisterStaticHandler(xla, byteps::bridge::kTarget,
                                                                "Host", byteps::bridge::handler);
    if (error == nullptr) return std::string();
    std::string message = xla::ffi::internal::GetErrorMessage(xla, error);
    xla::ffi::internal::DestroyError(xla, error);
    return message;
  }();
  return problem.c_str();
}
