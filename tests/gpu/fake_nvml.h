// The fake GPU's NVML, as far as a reader of topologies asks: its declarations, proven against nvml.h by
// nvml_abi_test.cc, which includes this file within a namespace, where FAKE_NVML_API is nothing.
//
// It tells of the machine, whatever CUDA_VISIBLE_DEVICES says:
//
//   FAKE_GPU_COUNT   devices (2)
//   FAKE_GPU_PLACES  node.switch,...  NUMA node of each device, and the PCIe switch that it is at (0.0 for all)
//   FAKE_GPU_LINKS   a-b:n,...        NVLinks between two devices (none)
#pragma once

#ifndef FAKE_NVML_API
#define FAKE_NVML_API extern "C" __attribute__((visibility("default")))
#endif

enum NvmlResult : unsigned {
  kNvmlSuccess = 0,
  kNvmlUninitialized = 1,
  kNvmlInvalidArgument = 2,
  kNvmlNotSupported = 3,
  kNvmlNotFound = 6,
  kNvmlInsufficientSize = 7,
};

enum NvmlLevel : unsigned {
  kNvmlInternal = 0,     // the device itself
  kNvmlSingle = 10,      // one PCIe switch
  kNvmlHostBridge = 30,  // one node
  kNvmlSystem = 50,
};

struct NvmlDevice;  // a handle

struct NvmlPciInfo {
  char legacy_bus_id[16];  // 0000:01:00.0
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];  // 00000000:01:00.0
};

FAKE_NVML_API NvmlResult nvmlInit_v2();
FAKE_NVML_API NvmlResult nvmlShutdown();
FAKE_NVML_API const char* nvmlErrorString(NvmlResult result);
FAKE_NVML_API NvmlResult nvmlDeviceGetCount_v2(unsigned* count);
FAKE_NVML_API NvmlResult nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice** device);
FAKE_NVML_API NvmlResult nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, NvmlDevice** device);
FAKE_NVML_API NvmlResult nvmlDeviceGetPciInfo_v3(NvmlDevice* device, NvmlPciInfo* info);
FAKE_NVML_API NvmlResult nvmlDeviceGetUUID(NvmlDevice* device, char* uuid, unsigned length);
FAKE_NVML_API NvmlResult nvmlDeviceGetNvLinkState(NvmlDevice* device, unsigned link,
                                                  unsigned* is_active);
FAKE_NVML_API NvmlResult nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice* device, unsigned link,
                                                             NvmlPciInfo* info);
FAKE_NVML_API NvmlResult nvmlDeviceGetTopologyCommonAncestor(NvmlDevice* one, NvmlDevice* other,
                                                             NvmlLevel* level);
