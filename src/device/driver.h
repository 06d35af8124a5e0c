// Driver: the functions of CUDA's driver that are used, as a table.
//
// The first tensor on a device opens the library, and it stays (it cannot be unloaded). A test puts functions of its
// own in the table, or a library of its own in the path (tests/gpu). Nothing of CUDA is needed when building.
//
// All functions may be called from any thread. Those that need a context work on the calling thread's current one; the
// address of memory that has been allocated belongs to its context whatever is current.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/abi.h"

namespace byteps::device {

struct Driver {
  abi::Code (*init)(unsigned flags) = nullptr;
  abi::Code (*driver_get_version)(int* version) = nullptr;
  abi::Code (*get_error_name)(abi::Code, const char** text) = nullptr;
  abi::Code (*get_error_string)(abi::Code, const char** text) = nullptr;
  abi::Code (*device_get_count)(int* count) = nullptr;
  abi::Code (*device_get)(abi::DeviceNumber*, int ordinal) = nullptr;
  abi::Code (*device_get_name)(char* name, int capacity, abi::DeviceNumber) = nullptr;
  abi::Code (*device_get_pci_bus_id)(char* id, int capacity, abi::DeviceNumber) = nullptr;
  abi::Code (*primary_context_retain)(abi::Context*, abi::DeviceNumber) = nullptr;
  abi::Code (*primary_context_release)(abi::DeviceNumber) = nullptr;
  abi::Code (*context_push)(abi::Context) = nullptr;
  abi::Code (*context_pop)(abi::Context*) = nullptr;
  abi::Code (*stream_create)(abi::Stream*, unsigned flags, int priority) = nullptr;
  abi::Code (*stream_destroy)(abi::Stream) = nullptr;
  abi::Code (*stream_synchronize)(abi::Stream) = nullptr;
  abi::Code (*thread_exchange_capture_mode)(abi::CaptureMode*) = nullptr;
  abi::Code (*stream_is_capturing)(abi::Stream, abi::CaptureStatus*) = nullptr;
  abi::Code (*event_create)(abi::Event*, unsigned flags) = nullptr;
  abi::Code (*event_destroy)(abi::Event) = nullptr;
  abi::Code (*event_record)(abi::Event, abi::Stream) = nullptr;
  abi::Code (*event_query)(abi::Event) = nullptr;
  abi::Code (*host_register)(void*, std::size_t bytes, unsigned flags) = nullptr;
  abi::Code (*host_unregister)(void*) = nullptr;
  abi::Code (*copy_to_host)(void*, abi::DeviceAddress, std::size_t bytes, abi::Stream) = nullptr;
  abi::Code (*copy_to_device)(abi::DeviceAddress, const void*, std::size_t bytes,
                              abi::Stream) = nullptr;
  abi::Code (*copy_on_device)(abi::DeviceAddress to, abi::DeviceAddress from, std::size_t bytes,
                              abi::Stream) = nullptr;
  abi::Code (*pointer_get_attribute)(void* value, abi::PointerAttribute,
                                     abi::DeviceAddress) = nullptr;
};

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

// The library's table, after cuInit. `path`: a file (BYTEPS_CUDA_LIBRARY), or empty for the one that is loaded already,
// else kCudaLibrary. kUnsupported: it is not there, is a stub, lacks a function, or finds no device; the text says what
// was looked for.
Result<std::shared_ptr<const Driver>> load_driver(const std::string& path);

// The devices that a process sees, for people, in one line: "2: NVIDIA H100 (0000:17:00.0), ...; the driver is for
// CUDA 13.0", or "none: " and why.
std::string describe_devices(const std::string& path);

// What a call came to: kOk, or an error that names the call and what the driver calls it.
Status status_of(const Driver& driver, abi::Code code, const char* call);

}  // namespace byteps::device
