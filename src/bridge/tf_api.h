// The part of TensorFlow's C interface that the shim uses, found in the process at run time: nothing of TensorFlow is
// included or linked. Names, arguments and constants are those of tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h,
// which have not changed since 2.13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace byteps::bridge {

// Opaque types of the C interface.
struct TF_Status;
struct TF_Tensor;
struct TF_OpKernelContext;
struct TF_OpKernelConstruction;
struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;

// TF_Code, which tf.errors are made of.
enum TfCode : int {
  kTfOk = 0,
  kTfUnknown = 2,
  kTfInvalidArgument = 3,
  kTfDeadlineExceeded = 4,
  kTfResourceExhausted = 8,
  kTfAborted = 10,
  kTfUnimplemented = 12,
  kTfInternal = 13,
};

// TF_DataType.
enum TfDtype : int {
  kTfFloat = 1,
  kTfDouble = 2,
  kTfInt32 = 3,
  kTfUint8 = 4,
  kTfInt16 = 5,
  kTfInt8 = 6,
  kTfComplex64 = 8,
  kTfInt64 = 9,
  kTfBool = 10,
  kTfBfloat16 = 14,
  kTfUint16 = 17,
  kTfComplex128 = 18,
  kTfFloat8E5m2 = 24,
  kTfFloat8E4m3fn = 25,
  kTfHalf = 19,
  kTfUint32 = 22,
  kTfUint64 = 23,
};

#define BYTEPS_TF_FUNCTIONS(X)                                                                \
  X(TF_Status*, TF_NewStatus, (void))                                                         \
  X(void, TF_DeleteStatus, (TF_Status*))                                                      \
  X(int, TF_GetCode, (const TF_Status*))                                                      \
  X(const char*, TF_Message, (const TF_Status*))                                              \
  X(void, TF_SetStatus, (TF_Status*, int, const char*))                                       \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                        \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                     \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))              \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))             \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))            \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))               \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                    \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))               \
  X(TF_ShapeHandle*, TF_NewShapeHandle, (void))                                               \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                            \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                  \
  X(void, TF_ShapeInferenceContextGetInput,                                                   \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                            \
  X(void, TF_ShapeInferenceContextSetOutput,                                                  \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                            \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                              \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                           \
     void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))   \
  X(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))             \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))            \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                \
    (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                  \
  X(void, TF_OpKernelConstruction_GetAttrStringList,                                          \
    (TF_OpKernelConstruction*, const char*, char**, size_t*, int, void*, size_t, TF_Status*)) \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                 \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                   \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                              \
    (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))       \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                      \
  X(int, TF_TensorType, (const TF_Tensor*))                                                   \
  X(int, TF_NumDims, (const TF_Tensor*))                                                      \
  X(int64_t, TF_Dim, (const TF_Tensor*, int))                                                 \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                 \
  X(int64_t, TF_TensorElementCount, (const TF_Tensor*))                                       \
  X(size_t, TF_DataTypeSize, (int))                                                           \
  X(void, TF_DeleteTensor, (TF_Tensor*))

struct TfApi {
#define BYTEPS_TF_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  BYTEPS_TF_FUNCTIONS(BYTEPS_TF_MEMBER)
#undef BYTEPS_TF_MEMBER
  // XLA_FFI_GetApi, since TensorFlow 2.17 or later; null before.
  const void* (*XLA_FFI_GetApi)(void) = nullptr;

  // What is missing; "" when nothing is.
  std::string problem;

  // Finds every function in the libtensorflow_framework of this process.
  TfApi();

 private:
  std::string find();
};

// A status for one call, deleted at the end of the scope.
class ScopedStatus {
 public:
  explicit ScopedStatus(const TfApi& api) : api_(api), status_(api.TF_NewStatus()) {}
  ~ScopedStatus() { api_.TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return api_.TF_GetCode(status_) == kTfOk; }
  std::string message() const { return api_.TF_Message(status_); }

 private:
  const TfApi& api_;
  TF_Status* status_;
};

}  // namespace byteps::bridge
