// The shim of TensorFlow: libbyteps_tensorflow.so, which python/byteps/tensorflow/native.py loads.
//
// One op, BytepsPushPull: a list of tensors in, the list of their sums (averages, ...) out. Eager code passes many
// tensors to one op, because TensorFlow waits for each eager op; graphs have one op per tensor, so that each leaves as
// soon as it exists. Its kernel is asynchronous: it submits and returns, and the bridge's thread ends it.
// Under XLA the op is replaced by a custom call: tf_xla.cc.
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/bridge.h"
#include "bridge/exchange.h"
#include "bridge/foreign_layouts.h"
#include "bridge/tf_api.h"
#include "bridge/tf_shim.h"
#include "bridge/xla_flight.h"
#include "byteps/byteps.h"

namespace byteps::bridge {
namespace {

constexpr const char* kOpName = "BytepsPushPull";

const TfApi api;

// ---- attributes

// Reads the attributes of a kernel under construction; the first failure sticks.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction)
      : construction_(construction), status_(api) {}

  std::vector<std::string> strings(const char* name) {
    int32_t total_bytes = 0;
    const int32_t count = list_size(name, &total_bytes);
    std::vector<char*> starts(static_cast<size_t>(count));
    std::vector<size_t> lengths(starts.size());
    std::vector<char> storage(static_cast<size_t>(total_bytes) + 1);
    if (!status_.ok() || count == 0) return {};
    api.TF_OpKernelConstruction_GetAttrStringList(construction_, name, starts.data(),
                                                  lengths.data(), count, storage.data(),
                                                  storage.size(), status_.get());
    if (!status_.ok()) return {};
    std::vector<std::string> values;
    for (size_t i = 0; i < starts.size(); i++) values.emplace_back(starts[i], lengths[i]);
    return values;
  }

  bool ok() const { return status_.ok(); }
  void fail() { api.TF_OpKernelConstruction_Failure(construction_, status_.get()); }

 private:
  int32_t list_size(const char* name, int32_t* total_bytes) {
    int32_t size = 0;
    int32_t ignored = 0;
    if (status_.ok()) {
      api.TF_OpKernelConstruction_GetAttrSize(construction_, name, &size,
                                              total_bytes == nullptr ? &ignored : total_bytes,
                                              status_.get());
    }
    return size < 0 ? 0 : size;
  }

  TF_OpKernelConstruction* construction_;
  ScopedStatus status_;
};

// What one op was told when it was made.
struct Kernel {
  std::vector<std::string> names;   // one per tensor
  std::vector<Exchange> exchanges;  // one per tensor
};

void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  Attributes attributes(construction);
  kernel->names = attributes.strings("tensor_names");
  for (const std::string& content : attributes.strings("exchanges")) {
    std::string_view packed = content;
    if (std::optional<Exchange> exchange = Exchange::take(packed)) {
      kernel->exchanges.push_back(*std::move(exchange));
    }
  }
  if (!attributes.ok()) attributes.fail();
  return kernel.release();
}

void destroy(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

// ---- the end of an asynchronous kernel

// One run of an op: its tensors are under way. Deletes itself after the last one. When ranks disagree about a tensor,
// which all of them learn, the failure is held back until the graph's other exchanges have started and ended (Flight).
class Run {
 public:
  Run(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
      : kernel_(kernel), context_(context), done_(done) {}

  void start() {
    const auto count = static_cast<size_t>(api.TF_NumInputs(context_));
    if (count != kernel_.names.size() || count != kernel_.exchanges.size()) {
      fail(kTfInvalidArgument, "BytepsPushPull: " + std::to_string(count) + " tensors, " +
                                   std::to_string(kernel_.names.size()) + " names and " +
                                   std::to_string(kernel_.exchanges.size()) + " exchanges");
      return end_one();
    }
    byteps_error error{};
    if (const int code = bridge().refuse_in_child(&error); code != BYTEPS_OK) {
      fail(tf_code(code), error.message);
      return end_one();
    }
    flight().begin(kOpName);
    is_in_flight_ = true;
    std::vector<Tensor> tensors(count);
    for (size_t i = 0; i < count; i++) {
      if (!prepare(static_cast<int>(i), tensors[i])) return end_one();
    }
    left_.fetch_add(count, std::memory_order_relaxed);
    for (size_t i = 0; i < count; i++) submit(tensors[i], i);
    end_one();
  }

 private:
  // Output i is made, of the memory of input i when nobody else needs that.
  bool prepare(int i, Tensor& tensor) {
    ScopedStatus status(api);
    TF_Tensor* input = nullptr;
    api.TF_GetInput(context_, i, &input, status.get());
    if (!status.ok()) return fail(api.TF_GetCode(status.get()), status.message());
    std::vector<int64_t> dimensions;
    for (int d = 0; d < api.TF_NumDims(input); d++) dimensions.push_back(api.TF_Dim(input, d));
    const int dtype = api.TF_TensorType(input);
    tensor.input = api.TF_TensorData(input);
    tensor.shape.assign(dimensions.begin(), dimensions.end());
    tensor.element_count = static_cast<uint64_t>(api.TF_TensorElementCount(input));
    api.TF_DeleteTensor(
        input);  // now, or TensorFlow never forwards it; the context keeps the input
    int forwarded = -1;
    TF_Tensor* output = api.TF_ForwardInputOrAllocateOutput(context_, &i, 1, i, dimensions.data(),
                                                            static_cast<int>(dimensions.size()),
                                                            &forwarded, status.get());
    if (!status.ok()) return fail(api.TF_GetCode(status.get()), status.message());
    outputs_.push_back(output);
    tensor.output = api.TF_TensorData(output);
    const auto place = static_cast<size_t>(i);
    const std::string refusal = set_elements(tensor, core_dtype(dtype), api.TF_DataTypeSize(dtype),
                                             kernel_.exchanges[place]);
    if (refusal.empty()) return true;
    return fail(kTfInvalidArgument, kernel_.names[place] + ": " + refusal);
  }

  void submit(const Tensor& tensor, size_t i) {
    byteps_error error{};
    const int code =
        push_pull(tensor, kernel_.names[i], kernel_.exchanges[i], &Run::on_end, this, &error);
    if (code == BYTEPS_OK) return;
    fail(tf_code(code), error.message, code == BYTEPS_MISMATCH);
    end_one();
  }

  // On the bridge's thread.
  static void on_end(void* run, int code, const char* message) {
    auto* self = static_cast<Run*>(run);
    if (code != BYTEPS_OK) self->fail(tf_code(code), message, code == BYTEPS_MISMATCH);
    self->end_one();
  }

  static TfCode tf_code(int code) {
    switch (code) {
      case BYTEPS_INVALID_ARGUMENT:
      case BYTEPS_MISMATCH:
        return kTfInvalidArgument;
      case BYTEPS_AGAIN:
        return kTfResourceExhausted;
      case BYTEPS_TIMEOUT:
        return kTfDeadlineExceeded;
      case BYTEPS_DISCONNECTED:  // as kTfUnavailable a function would make an InternalError of it
      case BYTEPS_CANCELLED:     // TensorFlow hides what is cancelled
        return kTfAborted;
      case BYTEPS_UNSUPPORTED:
        return kTfUnimplemented;
      case BYTEPS_SYSTEM:
        return kTfInternal;
      default:
        return kTfUnknown;
    }
  }

  // The first failure is the op's. Returns false.
  bool fail(int code, const std::string& message, bool is_everywhere = false) {
    const std::lock_guard lock(failure_mutex_);
    if (failure_code_ == kTfOk) {
      failure_code_ = code;
      failure_ = message;
      is_everywhere_ = is_everywhere;
    }
    return false;
  }

  void end_one() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (is_in_flight_) flight().end(kOpName);
    if (is_everywhere_) return flight().fail_later([this] { finish(); });
    finish();
  }

  void finish() {
    for (TF_Tensor* output : outputs_) api.TF_DeleteTensor(output);
    if (failure_code_ != kTfOk) {
      ScopedStatus status(api);
      api.TF_SetStatus(status.get(), failure_code_, failure_.c_str());
      api.TF_OpKernelContext_Failure(context_, status.get());
    }
    ForeignFunction done = done_;
    delete this;
    done.run();
  }

  const Kernel& kernel_;
  TF_OpKernelContext* context_;
  // ComputeAsync of the C interface's kernel hands out the address of a std::function that dies when our function
  // returns (tensorflow/c/kernels.cc, 2.13 to 2.21), so it must be copied.
  ForeignFunction done_;
  std::vector<TF_Tensor*> outputs_;
  std::atomic<size_t> left_{1};  // tensors under way, and start() itself
  std::mutex failure_mutex_;
  int failure_code_ = kTfOk;
  bool is_everywhere_ = false;  // the failure: all ranks get it
  bool is_in_flight_ = false;
  std::string failure_;
};

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  (new Run(*static_cast<const Kernel*>(kernel), context, done))->start();
}

// ---- registration

void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = api.TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < count; i++) {
    TF_ShapeHandle* shape = api.TF_NewShapeHandle();
    api.TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (api.TF_GetCode(status) == kTfOk) {
      api.TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    }
    api.TF_DeleteShapeHandle(shape);
  }
}

std::string register_op() {
  TF_OpDefinitionBuilder* builder = api.TF_NewOpDefinitionBuilder(kOpName);
  for (const char* attribute : {"T: list(type) >= 1", "tensor_names: list(string)",
                                "exchanges: list(string)", "key: int = 0"}) {
    api.TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  api.TF_OpDefinitionBuilderAddInput(builder, "tensors: T");
  api.TF_OpDefinitionBuilderAddOutput(builder, "results: T");
  api.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  api.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes);
  ScopedStatus status(api);
  api.TF_RegisterOpDefinition(builder, status.get());
  return status.message();
}

std::string register_kernel() {
  ScopedStatus status(api);
  TF_KernelBuilder* builder =
      api.TF_NewAsyncKernelBuilder(kOpName, "CPU", create, compute, destroy);
  api.TF_RegisterKernelBuilder(kOpName, builder, status.get());
  return status.message();
}

std::string register_all() {
  std::string problem = api.problem;
  if (problem.empty()) problem = register_op();
  if (problem.empty()) problem = register_kernel();
  return problem;
}

// Why the op is not there; "" when it is. At load: tf.load_op_library reads the ops that a library registers then.
const std::string problem = register_all();

}  // namespace

CoreDtype core_dtype(int tf_dtype) {
  switch (tf_dtype) {
    case kTfFloat:
      return {BYTEPS_FLOAT32, 1};
    case kTfDouble:
      return {BYTEPS_FLOAT64, 1};
    case kTfHalf:
      return {BYTEPS_FLOAT16, 1};
    case kTfBfloat16:
      return {BYTEPS_BFLOAT16, 1};
    case kTfUint8:
      return {BYTEPS_UINT8, 1};
    case kTfInt8:
      return {BYTEPS_INT8, 1};
    case kTfUint16:
      return {BYTEPS_UINT16, 1};
    case kTfInt16:
      return {BYTEPS_INT16, 1};
    case kTfUint32:
      return {BYTEPS_UINT32, 1};
    case kTfInt32:
      return {BYTEPS_INT32, 1};
    case kTfUint64:
      return {BYTEPS_UINT64, 1};
    case kTfInt64:
      return {BYTEPS_INT64, 1};
    case kTfBool:
      return {BYTEPS_BOOL, 1};
    case kTfComplex64:
      return {BYTEPS_FLOAT32, 2, BYTEPS_LOGICAL_COMPLEX64};
    case kTfComplex128:
      return {BYTEPS_FLOAT64, 2, BYTEPS_LOGICAL_COMPLEX128};
    case kTfFloat8E4m3fn:
      return {0, 0, BYTEPS_LOGICAL_FLOAT8_E4M3FN};
    case kTfFloat8E5m2:
      return {0, 0, BYTEPS_LOGICAL_FLOAT8_E5M2};
    default:
      return {0, 0};
  }
}

const void* xla_ffi_api() {
  return api.XLA_FFI_GetApi == nullptr ? nullptr : api.XLA_FFI_GetApi();
}

}  // namespace byteps::bridge

// Why the op is not there, or "" when it is; valid for ever.
extern "C" BYTEPS_API const char* byteps_tensorflow_problem(void) {
  return byteps::bridge::problem.c_str();
}
