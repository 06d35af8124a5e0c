#include "device/driver.h"

#include <array>
#include <utility>

#include <dlfcn.h>

namespace byteps::device {
namespace {

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  void* const found = ::dlsym(library, symbol);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

// The suffixes are part of the names: a function without one is an older one, with other arguments.
const char* first_missing(void* library, Driver& d) {
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto& function) {
    if (!find(library, symbol, function) && missing == nullptr) missing = symbol;
  };
  need("cuInit", d.init);
  need("cuDriverGetVersion", d.driver_get_version);
  need("cuGetErrorName", d.get_error_name);
  need("cuGetErrorString", d.get_error_string);
  need("cuDeviceGetCount", d.device_get_count);
  need("cuDeviceGet", d.device_get);
  need("cuDeviceGetName", d.device_get_name);
  need("cuDeviceGetPCIBusId", d.device_get_pci_bus_id);
  need("cuDevicePrimaryCtxRetain", d.primary_context_retain);
  need("cuDevicePrimaryCtxRelease_v2", d.primary_context_release);
  need("cuCtxPushCurrent_v2", d.context_push);
  need("cuCtxPopCurrent_v2", d.context_pop);
  need("cuStreamCreateWithPriority", d.stream_create);
  need("cuStreamDestroy_v2", d.stream_destroy);
  need("cuStreamSynchronize", d.stream_synchronize);
  need("cuThreadExchangeStreamCaptureMode", d.thread_exchange_capture_mode);
  need("cuStreamIsCapturing", d.stream_is_capturing);
  need("cuEventCreate", d.event_create);
  need("cuEventDestroy_v2", d.event_destroy);
  need("cuEventRecord", d.event_record);
  need("cuEventQuery", d.event_query);
  need("cuMemHostRegister_v2", d.host_register);
  need("cuMemHostUnregister", d.host_unregister);
  need("cuMemcpyDtoHAsync_v2", d.copy_to_host);
  need("cuMemcpyHtoDAsync_v2", d.copy_to_device);
  need("cuMemcpyDtoDAsync_v2", d.copy_on_device);
  need("cuPointerGetAttribute", d.pointer_get_attribute);
  return missing;
}

Status no_driver(const std::string& why) {
  return {Code::kUnsupported, "no CUDA driver: " + why};
}

// Never closed: the driver cannot be unloaded.
void* open(const std::string& path) {
  if (!path.empty()) return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  // The one that the framework uses, wherever it lies.
  void* const loaded = ::dlopen(kCudaLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return loaded != nullptr ? loaded : ::dlopen(kCudaLibrary, RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

Status status_of(const Driver& driver, abi::Code code, const char* call) {
  if (code == abi::kSuccess) return Status::ok();
  const char* name = nullptr;
  const char* words = nullptr;
  std::string text = std::string(call) + " failed: ";
  if (driver.get_error_name(code, &name) != abi::kSuccess || name == nullptr) {
    return {Code::kSystem, text + "error " + std::to_string(code)};
  }
  text += name;
  if (driver.get_error_string(code, &words) == abi::kSuccess && words != nullptr) {
    text += std::string(" (") + words + ")";
  }
  return {Code::kSystem, text};
}

Result<std::shared_ptr<const Driver>> load_driver(const std::string& path) {
  void* const library = open(path);
  if (library == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is safe
    return no_driver(std::string(why == nullptr ? kCudaLibrary : why) +
                     "; install NVIDIA's driver, or let the container have it (--gpus all)");
  }
  Driver driver;
  if (const char* const missing = first_missing(library, driver); missing != nullptr) {
    return no_driver(std::string(path.empty() ? kCudaLibrary : path.c_str()) + " has no " +
                     missing + "; it is older than CUDA 10.1, or none: update NVIDIA's driver");
  }
  const abi::Code begun = driver.init(0);
  if (begun == abi::kStubLibrary) {
    return no_driver(
        "the library found is the toolkit's stub, which is for linking only: take "
        "its folder out of LD_LIBRARY_PATH");
  }
  if (begun != abi::kSuccess) return no_driver(status_of(driver, begun, "cuInit").message());
  int count = 0;
  const abi::Code counted = driver.device_get_count(&count);
  if (counted != abi::kSuccess) {
    return no_driver(status_of(driver, counted, "cuDeviceGetCount").message());
  }
  if (count == 0) {
    return no_driver("it sees no device (is CUDA_VISIBLE_DEVICES empty?)");
  }
  return std::make_shared<const Driver>(driver);
}

std::string describe_devices(const std::string& path) {
  const auto loaded = load_driver(path);
  if (!loaded.is_ok()) return "none: " + loaded.status().message();
  const Driver& driver = *loaded.value();
  int count = 0;
  if (driver.device_get_count(&count) != abi::kSuccess)
    return "none: the driver does not count them";
  std::string text = std::to_string(count) + ":";
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    abi::DeviceNumber device = 0;
    std::array<char, 256> name{};
    std::array<char, 64> bus_id{};
    const auto last = [](const auto& room) { return static_cast<int>(room.size() - 1); };
    if (driver.device_get(&device, ordinal) != abi::kSuccess) continue;
    (void)driver.device_get_name(name.data(), last(name), device);
    (void)driver.device_get_pci_bus_id(bus_id.data(), last(bus_id), device);
    text += std::string(ordinal > 0 ? "," : "") + " " + name.data() + " (" + bus_id.data() + ")";
  }
  int version = 0;  // 1000 * major + 10 * minor
  if (driver.driver_get_version(&version) != abi::kSuccess) return text;
  return text + "; the driver is for CUDA " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

}  // namespace byteps::device
