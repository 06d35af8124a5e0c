// Our declarations of libibverbs are those of its header, where that is installed.
#include <cstddef>

#include <gtest/gtest.h>

#include "net/rdma/abi.h"

#if __has_include(<infiniband/verbs.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#include <infiniband/verbs.h>
#pragma GCC diagnostic pop

namespace byteps::rdma {
namespace {

#define SAME_PLACE(ours, our_field, theirs, their_field)                           \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(abi::ours::our_field) == sizeof(theirs::their_field))
#define SAME(ours, theirs, field) SAME_PLACE(ours, field, theirs, field)

static_assert(sizeof(abi::Gid) == sizeof(ibv_gid));
static_assert(sizeof(abi::Completion) == sizeof(ibv_wc));
static_assert(sizeof(abi::Piece) == sizeof(ibv_sge));
static_assert(sizeof(abi::SendRequest) == sizeof(ibv_send_wr));
static_assert(sizeof(abi::ReceiveRequest) == sizeof(ibv_recv_wr));
static_assert(sizeof(abi::QpInitAttributes) == sizeof(ibv_qp_init_attr));
static_assert(sizeof(abi::QpAttributes) == sizeof(ibv_qp_attr));
static_assert(sizeof(abi::AddressAttributes) == sizeof(ibv_ah_attr));
static_assert(sizeof(abi::PortAttributes) >= sizeof(ibv_port_attr));
static_assert(sizeof(abi::DeviceAttributes) == sizeof(ibv_device_attr));
static_assert(sizeof(abi::AsyncEvent) == sizeof(ibv_async_event));
static_assert(sizeof(abi::MemoryRegion) == sizeof(ibv_mr));
static_assert(sizeof(abi::ContextOps) == sizeof(ibv_context_ops));

SAME(Completion, ibv_wc, status);
SAME(Completion, ibv_wc, opcode);
SAME(Completion, ibv_wc, imm_data);
SAME(Completion, ibv_wc, wc_flags);
SAME(Completion, ibv_wc, byte_len);
SAME(SendRequest, ibv_send_wr, sg_list);
SAME(SendRequest, ibv_send_wr, num_sge);
SAME(SendRequest, ibv_send_wr, opcode);
SAME(SendRequest, ibv_send_wr, send_flags);
SAME(SendRequest, ibv_send_wr, imm_data);
SAME_PLACE(SendRequest, remote_addr, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(SendRequest, rkey, ibv_send_wr, wr.rdma.rkey);
SAME(ReceiveRequest, ibv_recv_wr, num_sge);
SAME(QpInitAttributes, ibv_qp_init_attr, cap);
SAME(QpInitAttributes, ibv_qp_init_attr, qp_type);
SAME(QpInitAttributes, ibv_qp_init_attr, sq_sig_all);
SAME(QpAttributes, ibv_qp_attr, dest_qp_num);
SAME(QpAttributes, ibv_qp_attr, qp_access_flags);
SAME(QpAttributes, ibv_qp_attr, ah_attr);
SAME(QpAttributes, ibv_qp_attr, pkey_index);
SAME(QpAttributes, ibv_qp_attr, max_rd_atomic);
SAME(QpAttributes, ibv_qp_attr, timeout);
SAME(QpAttributes, ibv_qp_attr, rnr_retry);
SAME(AddressAttributes, ibv_ah_attr, dlid);
SAME(AddressAttributes, ibv_ah_attr, port_num);
SAME(GlobalRoute, ibv_global_route, sgid_index);
SAME(GlobalRoute, ibv_global_route, traffic_class);
SAME(PortAttributes, ibv_port_attr, active_mtu);
SAME(PortAttributes, ibv_port_attr, gid_tbl_len);
SAME(PortAttributes, ibv_port_attr, lid);
SAME(PortAttributes, ibv_port_attr, link_layer);
SAME(DeviceAttributes, ibv_device_attr, max_qp_wr);
SAME(DeviceAttributes, ibv_device_attr, max_cqe);
SAME(DeviceAttributes, ibv_device_attr, phys_port_cnt);
SAME(ContextOps, ibv_context_ops, poll_cq);
SAME(ContextOps, ibv_context_ops, req_notify_cq);
SAME(ContextOps, ibv_context_ops, post_send);
SAME(ContextOps, ibv_context_ops, post_recv);
SAME(Context, ibv_context, ops);
SAME(Context, ibv_context, async_fd);
SAME(CompletionChannel, ibv_comp_channel, fd);
SAME(CompletionQueue, ibv_cq, cq_context);
SAME(QueuePair, ibv_qp, qp_num);
SAME(MemoryRegion, ibv_mr, lkey);
SAME(MemoryRegion, ibv_mr, rkey);
SAME(AsyncEvent, ibv_async_event, event_type);

static_assert(abi::kWcRetryExceeded == +IBV_WC_RETRY_EXC_ERR);
static_assert(abi::kWcFlushed == +IBV_WC_WR_FLUSH_ERR);
static_assert(abi::kWcReceiveWriteWithImm == +IBV_WC_RECV_RDMA_WITH_IMM);
static_assert(abi::kWrSendWithImm == +IBV_WR_SEND_WITH_IMM);
static_assert(abi::kQpError == +IBV_QPS_ERR);
static_assert(abi::kQpReliable == +IBV_QPT_RC);
static_assert(abi::kMaskRemoteQp == +IBV_QP_DEST_QPN &&
              abi::kMaskReadsIn == +IBV_QP_MAX_DEST_RD_ATOMIC);
static_assert(abi::kMaskRnrTimer == +IBV_QP_MIN_RNR_TIMER &&
              abi::kMaskReadsOut == +IBV_QP_MAX_QP_RD_ATOMIC);
static_assert(abi::kMaskSendPsn == +IBV_QP_SQ_PSN && abi::kMaskReceivePsn == +IBV_QP_RQ_PSN);
static_assert(abi::kMaskTimeout == +IBV_QP_TIMEOUT && abi::kMaskRetries == +IBV_QP_RETRY_CNT);
static_assert(abi::kMaskRnrRetries == +IBV_QP_RNR_RETRY && abi::kMaskMtu == +IBV_QP_PATH_MTU);
static_assert(abi::kMaskAddress == +IBV_QP_AV && abi::kMaskPort == +IBV_QP_PORT);
static_assert(abi::kMaskPkeyIndex == +IBV_QP_PKEY_INDEX &&
              abi::kMaskAccess == +IBV_QP_ACCESS_FLAGS);
static_assert(abi::kAccessRemoteWrite == +IBV_ACCESS_REMOTE_WRITE);
static_assert(abi::kSendInline == +IBV_SEND_INLINE && abi::kSendSignaled == +IBV_SEND_SIGNALED);
static_assert(abi::kPortActive == +IBV_PORT_ACTIVE);
static_assert(abi::kEventPortError == +IBV_EVENT_PORT_ERR &&
              abi::kEventDeviceFatal == +IBV_EVENT_DEVICE_FATAL &&
              abi::kEventCompletionQueueError == +IBV_EVENT_CQ_ERR &&
              abi::kEventQueuePairFatal == +IBV_EVENT_QP_FATAL);
static_assert(abi::kForkUnneeded == +IBV_FORK_UNNEEDED);

TEST(RdmaAbi, our_declarations_are_those_of_the_installed_header) {
  SUCCEED() << "checked when compiled";
}

}  // namespace
}  // namespace byteps::rdma
#else
TEST(RdmaAbi, our_declarations_are_those_of_the_installed_header) {
  GTEST_SKIP()
      << "no <infiniband/verbs.h> here: apt-get install libibverbs-dev (Fedora: rdma-core-devel)";
}
#endif
