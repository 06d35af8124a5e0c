// The part of libibverbs' binary interface that is used here, declared by us.
//
// So that what is built anywhere can do RDMA where there is libibverbs.so.1: neither its headers when building nor the
// library when running must be there. Names and order of fields are those of <infiniband/verbs.h> (rdma-core), whose
// meaning is told by the man pages ibv_*(3). This interface (symbol version IBVERBS_1.1) has not changed since 2006;
// tests/net/rdma_abi_test.cc compares it with the header where that is installed.
//
// Objects that the library makes are only read, and only as far as they are declared here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps::rdma::abi {

struct Device;            // ibv_device
struct ProtectionDomain;  // ibv_pd
struct CompletionQueue;   // ibv_cq
struct QueuePair;         // ibv_qp
struct Context;           // ibv_context
struct SharedReceive;     // ibv_srq
struct MemoryWindow;      // ibv_mw

enum WcStatus : std::uint32_t { kWcSuccess = 0, kWcFlushed = 5, kWcRetryExceeded = 12 };
enum WcOpcode : std::uint32_t { kWcReceive = 1 << 7, kWcReceiveWriteWithImm = (1 << 7) + 1 };
enum WcFlags : std::uint32_t { kWcWithImm = 1 << 1 };
enum WrOpcode : std::uint32_t { kWrWrite = 0, kWrWriteWithImm = 1, kWrSendWithImm = 3 };
enum SendFlags : std::uint32_t { kSendSignaled = 1 << 1, kSendInline = 1 << 3 };
enum Access : std::uint32_t { kAccessLocalWrite = 1, kAccessRemoteWrite = 1 << 1 };
enum QpState : std::uint32_t { kQpReset = 0, kQpInit = 1, kQpRtr = 2, kQpRts = 3, kQpError = 6 };
enum QpType : std::uint32_t { kQpReliable = 2 };
enum PortState : std::uint32_t { kPortActive = 4 };
enum LinkLayer : std::uint8_t { kLinkInfiniband = 1, kLinkEthernet = 2 };
enum EventType : std::uint32_t {
  kEventCompletionQueueError = 0,
  kEventQueuePairFatal = 1,
  kEventDeviceFatal = 8,
  kEventPortActive = 9,
  kEventPortError = 10
};
enum ForkStatus : std::uint32_t { kForkDisabled = 0, kForkEnabled = 1, kForkUnneeded = 2 };

enum QpMask : std::uint32_t {
  kMaskState = 1 << 0,
  kMaskAccess = 1 << 3,
  kMaskPkeyIndex = 1 << 4,
  kMaskPort = 1 << 5,
  kMaskAddress = 1 << 7,
  kMaskMtu = 1 << 8,
  kMaskTimeout = 1 << 9,
  kMaskRetries = 1 << 10,
  kMaskRnrRetries = 1 << 11,
  kMaskReceivePsn = 1 << 12,
  kMaskReadsOut = 1 << 13,
  kMaskRnrTimer = 1 << 15,
  kMaskSendPsn = 1 << 16,
  kMaskReadsIn = 1 << 17,
  kMaskRemoteQp = 1 << 20,
};

union Gid {
  std::uint8_t raw[16];
  std::uint64_t words[2];
};

struct Completion {  // ibv_wc
  std::uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t imm_data;  // in network byte order
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  std::uint32_t wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
};

struct Piece {  // ibv_sge
  std::uint64_t addr;
  std::uint32_t length;
  std::uint32_t lkey;
};

struct SendRequest {  // ibv_send_wr
  std::uint64_t wr_id;
  SendRequest* next;
  Piece* sg_list;
  int num_sge;
  WrOpcode opcode;
  std::uint32_t send_flags;
  std::uint32_t imm_data;  // in network byte order
  std::uint64_t remote_addr;
  std::uint32_t rkey;
  std::uint64_t others[9];  // of other kinds of requests
};

struct ReceiveRequest {  // ibv_recv_wr
  std::uint64_t wr_id;
  ReceiveRequest* next;
  Piece* sg_list;
  int num_sge;
};

struct QpCapacity {  // ibv_qp_cap
  std::uint32_t max_send_wr;
  std::uint32_t max_recv_wr;
  std::uint32_t max_send_sge;
  std::uint32_t max_recv_sge;
  std::uint32_t max_inline_data;
};

struct QpInitAttributes {  // ibv_qp_init_attr
  void* qp_context;
  CompletionQueue* send_cq;
  CompletionQueue* recv_cq;
  SharedReceive* srq;
  QpCapacity cap;
  QpType qp_type;
  int sq_sig_all;
};

struct GlobalRoute {  // ibv_global_route
  Gid dgid;
  std::uint32_t flow_label;
  std::uint8_t sgid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};

struct AddressAttributes {  // ibv_ah_attr
  GlobalRoute grh;
  std::uint16_t dlid;
  std::uint8_t sl;
  std::uint8_t src_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port_num;
};

struct QpAttributes {  // ibv_qp_attr
  QpState qp_state;
  QpState cur_qp_state;
  std::uint32_t path_mtu;
  std::uint32_t path_mig_state;
  std::uint32_t qkey;
  std::uint32_t rq_psn;
  std::uint32_t sq_psn;
  std::uint32_t dest_qp_num;
  std::uint32_t qp_access_flags;
  QpCapacity cap;
  AddressAttributes ah_attr;
  AddressAttributes alt_ah_attr;
  std::uint16_t pkey_index;
  std::uint16_t alt_pkey_index;
  std::uint8_t en_sqd_async_notify;
  std::uint8_t sq_draining;
  std::uint8_t max_rd_atomic;
  std::uint8_t max_dest_rd_atomic;
  std::uint8_t min_rnr_timer;
  std::uint8_t port_num;
  std::uint8_t timeout;
  std::uint8_t retry_cnt;
  std::uint8_t rnr_retry;
  std::uint8_t alt_port_num;
  std::uint8_t alt_timeout;
  std::uint32_t rate_limit;
};

struct PortAttributes {  // ibv_port_attr
  PortState state;
  std::uint32_t max_mtu;
  std::uint32_t active_mtu;  // 1: 256 bytes ... 5: 4096
  int gid_tbl_len;
  std::uint32_t port_cap_flags;
  std::uint32_t max_msg_sz;
  std::uint32_t bad_pkey_cntr;
  std::uint32_t qkey_viol_cntr;
  std::uint16_t pkey_tbl_len;
  std::uint16_t lid;
  std::uint16_t sm_lid;
  std::uint8_t lmc;
  std::uint8_t max_vl_num;
  std::uint8_t sm_sl;
  std::uint8_t subnet_timeout;
  std::uint8_t init_type_reply;
  std::uint8_t active_width;
  std::uint8_t active_speed;
  std::uint8_t phys_state;
  LinkLayer link_layer;
  std::uint8_t flags;
  std::uint16_t port_cap_flags2;
  std::uint8_t later[64];  // newer versions may fill in more
};

struct DeviceAttributes {  // ibv_device_attr
  char fw_ver[64];
  std::uint64_t node_guid;
  std::uint64_t sys_image_guid;
  std::uint64_t max_mr_size;
  std::uint64_t page_size_cap;
  std::uint32_t vendor_id;
  std::uint32_t vendor_part_id;
  std::uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  std::uint32_t device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int max_pd;
  int others[20];  // of kinds not used here
  std::uint16_t max_pkeys;
  std::uint8_t local_ca_ack_delay;
  std::uint8_t phys_port_cnt;
};

struct AsyncEvent {  // ibv_async_event
  union {
    void* object;
    int port_num;
  } element;
  EventType event_type;
};

struct ContextOps {  // ibv_context_ops: what inline functions of the header call
  void* before_poll[11];
  int (*poll_cq)(CompletionQueue*, int, Completion*);
  int (*req_notify_cq)(CompletionQueue*, int solicited_only);
  void* before_send[12];
  int (*post_send)(QueuePair*, SendRequest*, SendRequest**);
  int (*post_recv)(QueuePair*, ReceiveRequest*, ReceiveRequest**);
  void* after_send[5];
};

struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
};

struct CompletionChannel {  // ibv_comp_channel
  Context* context;
  int fd;
  int refcnt;
};

struct CompletionQueue {
  Context* context;
  CompletionChannel* channel;
  void* cq_context;
};

struct QueuePair {
  Context* context;
  void* qp_context;
  ProtectionDomain* pd;
  CompletionQueue* send_cq;
  CompletionQueue* recv_cq;
  SharedReceive* srq;
  std::uint32_t handle;
  std::uint32_t qp_num;
};

struct MemoryRegion {  // ibv_mr
  Context* context;
  ProtectionDomain* pd;
  void* addr;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

}  // namespace byteps::rdma::abi
