// The codes that the fake gives, by CUDA's names (cuda.h, enum cudaError_enum).
#include <algorithm>
#include <array>

#include "tests/gpu/engine.h"

namespace fake_gpu {

namespace {

struct Named {
  Code code;
  const char* name;
  const char* text;
};

constexpr std::array kCodes{
    Named{kSuccess, "CUDA_SUCCESS", "no error"},
    Named{kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    Named{kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    Named{kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    Named{kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    Named{34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    Named{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    Named{kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    Named{kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    Named{kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    Named{214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    Named{kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    Named{kIllegalState, "CUDA_ERROR_ILLEGAL_STATE",
          "the operation cannot be performed in the present state"},
    Named{kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    Named{kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    Named{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    Named{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    Named{702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    Named{kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    Named{710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    Named{kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
          "part or all of the requested memory range is already mapped"},
    Named{kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
          "pointer does not correspond to a registered memory region"},
    Named{714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    Named{715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    Named{716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    Named{717, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
          "operation not supported on global/shared address space"},
    Named{718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    Named{719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    Named{kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    Named{kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    Named{kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
          "operation not permitted when stream is capturing"},
    Named{kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
          "operation failed due to a previous error during capture"},
    Named{kCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
          "operation would result in a merge of separate capture sequences"},
    Named{kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
          "capture was not ended in the same stream as it began"},
    Named{kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
          "dependency created on uncaptured work in another stream"},
    Named{kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
          "operation would make the legacy stream depend on a capturing blocking stream"},
    Named{kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
          "operation not permitted on an event last recorded in a capturing stream"},
    Named{kCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
          "attempt to terminate a thread-local capture sequence from another thread"},
    Named{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Named* entry_of(Code code) {
  const auto* const entry = std::find_if(kCodes.begin(), kCodes.end(),
                                         [&](const Named& one) { return one.code == code; });
  return entry == kCodes.end() ? nullptr : entry;
}

}  // namespace

// The codes of which cuda.h says that the context cannot be used any more.
bool is_sticky(Code code) {
  constexpr std::array kSticky{214U, 700U, 702U, 710U, 714U, 715U, 716U, 717U, 718U, 719U};
  return std::find(kSticky.begin(), kSticky.end(), code) != kSticky.end();
}

const char* name_of(Code code) {
  const Named* const entry = entry_of(code);
  return entry == nullptr ? nullptr : entry->name;
}

const char* text_of(Code code) {
  const Named* const entry = entry_of(code);
  return entry == nullptr ? nullptr : entry->text;
}

}  // namespace fake_gpu
