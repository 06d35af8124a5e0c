// Verbs: the functions of libibverbs that are used, as a table.
//
// The application opens the library where RDMA is wanted, and it stays (its drivers cannot be unloaded). A test puts
// functions of its own in the table (tests/net/fake_verbs.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/rdma/abi.h"

namespace byteps::rdma {

struct Verbs {
  abi::Device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(abi::Device**) = nullptr;
  const char* (*get_device_name)(abi::Device*) = nullptr;
  abi::Context* (*open_device)(abi::Device*) = nullptr;
  int (*close_device)(abi::Context*) = nullptr;
  int (*query_device)(abi::Context*, abi::DeviceAttributes*) = nullptr;
  int (*query_port)(abi::Context*, std::uint8_t port, abi::PortAttributes*) = nullptr;
  int (*query_gid)(abi::Context*, std::uint8_t port, int index, abi::Gid*) = nullptr;
  abi::ProtectionDomain* (*alloc_pd)(abi::Context*) = nullptr;
  int (*dealloc_pd)(abi::ProtectionDomain*) = nullptr;
  abi::MemoryRegion* (*reg_mr)(abi::ProtectionDomain*, void*, std::size_t, int access) = nullptr;
  int (*dereg_mr)(abi::MemoryRegion*) = nullptr;
  abi::CompletionChannel* (*create_comp_channel)(abi::Context*) = nullptr;
  int (*destroy_comp_channel)(abi::CompletionChannel*) = nullptr;
  abi::CompletionQueue* (*create_cq)(abi::Context*, int entries, void* cq_context,
                                     abi::CompletionChannel*, int vector) = nullptr;
  int (*destroy_cq)(abi::CompletionQueue*) = nullptr;
  int (*get_cq_event)(abi::CompletionChannel*, abi::CompletionQueue**, void** cq_context) = nullptr;
  void (*ack_cq_events)(abi::CompletionQueue*, unsigned count) = nullptr;
  abi::QueuePair* (*create_qp)(abi::ProtectionDomain*, abi::QpInitAttributes*) = nullptr;
  int (*modify_qp)(abi::QueuePair*, abi::QpAttributes*, int mask) = nullptr;
  int (*destroy_qp)(abi::QueuePair*) = nullptr;
  int (*get_async_event)(abi::Context*, abi::AsyncEvent*) = nullptr;
  void (*ack_async_event)(abi::AsyncEvent*) = nullptr;
  const char* (*wc_status_str)(abi::WcStatus) = nullptr;
  int (*fork_init)() = nullptr;
  abi::ForkStatus (*is_fork_initialized)() = nullptr;  // null before rdma-core 35

  // "RoCE v2", "IB/RoCE v1", or empty: what the kernel says of an entry of a port's GID table.
  std::function<std::string(const std::string& device, int port, int index)> gid_type;
  // Whether a network interface belongs to the port: for devices whose GIDs are not addresses.
  std::function<bool(const std::string& interface, const std::string& device, int port)>
      is_of_interface;
};

inline constexpr const char* kVerbsLibrary = "libibverbs.so.1";

// A library's table, ready for use, with fork() made safe where that is needed. Once for a process, but again does no
// harm. kUnsupported: it is not installed; the text says what to install.
Result<std::shared_ptr<const Verbs>> load_verbs(const char* library = kVerbsLibrary);

}  // namespace byteps::rdma
