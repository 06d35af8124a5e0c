#include "bridge/tf_api.h"

#include <dlfcn.h>

namespace byteps::bridge {

TfApi::TfApi() : problem(find()) {}

std::string TfApi::find() {
  void* library = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr)
    return "libtensorflow_framework.so.2 is not in this process: import tensorflow first";
    // The library stays with the process that imported it; the count of this dlopen is never given back.
#define BYTEPS_TF_FIND(result, name, arguments)                        \
  name = reinterpret_cast<result(*) arguments>(dlsym(library, #name)); \
  if (name == nullptr) return #name " is lacking: TensorFlow 2.13 or newer is needed";
  BYTEPS_TF_FUNCTIONS(BYTEPS_TF_FIND)
#undef BYTEPS_TF_FIND
  XLA_FFI_GetApi = reinterpret_cast<const void* (*)(void)>(dlsym(library, "XLA_FFI_GetApi"));
  return "";
}

}  // namespace byteps::bridge
