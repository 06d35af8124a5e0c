// Verbs of a device that is not there: two queue pairs of this process write into each other's memory.
//
// What is posted happens later, in order, when anybody looks at a completion queue; from memory as it is then. So a
// buffer that is reused too early shows as wrong bytes. Checked as a device would: keys and limits of memory, states,
// lengths of queues. A write with immediate data that finds no receive entry counts in `rnr_count` and fails.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "net/rdma/verbs.h"

namespace byteps::rdma {

struct FakeFabric;

struct FakeQueue : abi::CompletionQueue {
  std::deque<abi::Completion> completions;
  std::size_t entries = 0;
  bool armed = false;
};

struct FakePair : abi::QueuePair {
  struct Request {
    std::uint64_t wr_id;
    abi::WrOpcode opcode;
    std::vector<abi::Piece> pieces;
    std::vector<std::byte> inlined;
    bool is_inline;
    std::uint32_t immediate;
    std::uint64_t address;
    std::uint32_t key;
  };
  std::uint32_t state = abi::kQpReset;
  std::uint32_t peer = 0;
  abi::QpCapacity capacity{};
  std::deque<std::uint64_t> receives;
  std::deque<Request> requests;
  std::size_t uncompleted = 0;  // in the send queue until their completion is taken
};

struct FakeChannel : abi::CompletionChannel {
  std::deque<FakeQueue*> events;
};

// One for the whole process: the interface of verbs is functions.
struct FakeFabric {
  std::map<std::uint32_t, FakePair*> pairs;
  std::map<std::uint32_t, abi::MemoryRegion*> remote_regions;  // by rkey
  std::map<std::uint32_t, abi::MemoryRegion*> regions;         // by lkey
  std::uint32_t last_number = 0;
  std::size_t registrations_max = ~std::size_t{0};
  std::size_t steps_per_look = 3;
  std::size_t rnr_count = 0;
  std::size_t writes = 0;
  bool port_is_up = true;
  bool delivers = true;            // false: the cable is pulled
  bool drops = false;              // every packet, and who sends one is told in the end
  bool drops_from_second = false;  // the same for packets of the pair that was made second
  std::size_t opened_count = 0;    // devices that were kept, in all
  std::size_t open_count = 0;      // devices that are open
  std::size_t listed_count = 0;
  int open_error = 0;  // why none can be opened; 0: they can
  std::deque<abi::AsyncEvent> device_events;
  int event_descriptor = -1;

  void heal() {
    registrations_max = ~std::size_t{0};
    steps_per_look = 3;
    rnr_count = 0;
    port_is_up = true;
    delivers = true;
    drops = drops_from_second = false;
    open_error = 0;
    device_events.clear();
  }

  void step() {
    if (drops) return expire();
    for (auto& [number, pair] : pairs) {
      if (drops_from_second && number != pairs.begin()->first) {
        expire(*pair);
        continue;
      }
      if (!delivers || pair->requests.empty() || pair->state != abi::kQpRts) continue;
      const auto other = pairs.find(pair->peer);
      if (other == pairs.end() || other->second->state < abi::kQpRtr) continue;  // no answer
      const FakePair::Request request = pair->requests.front();
      pair->requests.pop_front();
      carry_out(*pair, *other->second, request);
    }
  }

  // What was not acknowledged never will be.
  void expire() {
    for (auto& [number, pair] : pairs) expire(*pair);
  }
  void expire(FakePair& pair) {
    if (pair.requests.empty()) return;
    complete(pair, pair.requests.front().wr_id, abi::kWcRetryExceeded);
    pair.requests.clear();
    pair.state = abi::kQpError;
  }

  void carry_out(FakePair& from, FakePair& to, const FakePair::Request& request) {
    std::vector<std::byte> bytes = request.inlined;
    for (const abi::Piece& piece : request.is_inline ? std::vector<abi::Piece>{} : request.pieces) {
      if (!is_inside(regions, piece.lkey, piece.addr, piece.length, 0)) {
        return fail(from, request.wr_id, 4);
      }
      const auto* const at = reinterpret_cast<const std::byte*>(piece.addr);
      bytes.insert(bytes.end(), at, at + piece.length);
    }
    if (!bytes.empty()) {
      if (!is_inside(remote_regions, request.key, request.address, bytes.size(),
                     abi::kAccessRemoteWrite)) {
        return fail(from, request.wr_id, 10);
      }
      std::memcpy(reinterpret_cast<void*>(request.address), bytes.data(), bytes.size());
    }
    ++writes;
    if (request.opcode == abi::kWrWriteWithImm) {
      if (to.receives.empty()) {
        ++rnr_count;
        return fail(from, request.wr_id, 13);
      }
      abi::Completion completion{};
      completion.wr_id = to.receives.front();
      completion.opcode = abi::kWcReceiveWriteWithImm;
      completion.wc_flags = abi::kWcWithImm;
      completion.imm_data = request.immediate;
      completion.byte_len = static_cast<std::uint32_t>(bytes.size());
      to.receives.pop_front();
      push(*static_cast<FakeQueue*>(to.recv_cq), completion);
    }
    complete(from, request.wr_id, abi::kWcSuccess);
  }

  static bool is_inside(const std::map<std::uint32_t, abi::MemoryRegion*>& all, std::uint32_t key,
                        std::uint64_t address, std::size_t bytes, std::uint32_t access) {
    const auto found = all.find(key);
    if (found == all.end()) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(found->second->addr);
    return address >= begin && address + bytes <= begin + found->second->length &&
           (found->second->handle & access) == access;
  }

  void fail(FakePair& pair, std::uint64_t wr_id, std::uint32_t status) {
    pair.state = abi::kQpError;
    complete(pair, wr_id, static_cast<abi::WcStatus>(status));
    while (!pair.requests.empty()) {
      complete(pair, pair.requests.front().wr_id, abi::kWcFlushed);
      pair.requests.pop_front();
    }
  }

  void complete(FakePair& pair, std::uint64_t wr_id, abi::WcStatus status) {
    abi::Completion completion{};
    completion.wr_id = wr_id;
    completion.status = status;
    completion.qp_num = pair.qp_num;
    --pair.uncompleted;
    push(*static_cast<FakeQueue*>(pair.send_cq), completion);
  }

  void push(FakeQueue& queue, const abi::Completion& completion) {
    queue.completions.push_back(completion);
    if (queue.completions.size() > queue.entries) std::abort();  // an overrun
    if (!std::exchange(queue.armed, false)) return;
    auto& channel = *static_cast<FakeChannel*>(queue.channel);
    channel.events.push_back(&queue);
    const std::uint64_t one = 1;
    (void)!::write(channel.fd, &one, sizeof one);
  }
};

inline FakeFabric& fake_fabric() {
  static FakeFabric fabric;
  return fabric;
}

namespace fake {

inline int poll_cq(abi::CompletionQueue* queue, int count, abi::Completion* out) {
  for (std::size_t i = 0; i < fake_fabric().steps_per_look; ++i) fake_fabric().step();
  auto& completions = static_cast<FakeQueue*>(queue)->completions;
  int taken = 0;
  for (; taken < count && !completions.empty(); ++taken) {
    out[taken] = completions.front();
    completions.pop_front();
  }
  return taken;
}

inline int req_notify_cq(abi::CompletionQueue* queue, int) {
  static_cast<FakeQueue*>(queue)->armed = true;
  return 0;
}

inline int post_send(abi::QueuePair* base, abi::SendRequest* request, abi::SendRequest** refused) {
  auto* const pair = static_cast<FakePair*>(base);
  for (; request != nullptr; request = request->next) {
    *refused = request;
    if (pair->state == abi::kQpError) return 0;  // flushed at once, and nobody asks
    if (pair->state != abi::kQpRts) return EINVAL;
    if (pair->uncompleted == pair->capacity.max_send_wr) return ENOMEM;
    if (request->num_sge > static_cast<int>(pair->capacity.max_send_sge)) return EINVAL;
    FakePair::Request posted{request->wr_id,
                             request->opcode,
                             {request->sg_list, request->sg_list + request->num_sge},
                             {},
                             (request->send_flags & abi::kSendInline) != 0,
                             request->imm_data,
                             request->remote_addr,
                             request->rkey};
    if (posted.is_inline) {
      for (const abi::Piece& piece : posted.pieces) {
        const auto* const at = reinterpret_cast<const std::byte*>(piece.addr);
        posted.inlined.insert(posted.inlined.end(), at, at + piece.length);
      }
      if (posted.inlined.size() > pair->capacity.max_inline_data) return EINVAL;
    }
    pair->requests.push_back(posted);
    ++pair->uncompleted;
  }
  return 0;
}

inline int post_recv(abi::QueuePair* base, abi::ReceiveRequest* request,
                     abi::ReceiveRequest** refused) {
  auto* const pair = static_cast<FakePair*>(base);
  for (; request != nullptr; request = request->next) {
    *refused = request;
    if (pair->receives.size() == pair->capacity.max_recv_wr) return ENOMEM;
    pair->receives.push_back(request->wr_id);
  }
  return 0;
}

inline abi::Device** get_device_list(int* count) {
  ++fake_fabric().listed_count;
  auto** const list = new abi::Device* [2] { reinterpret_cast<abi::Device*>(8), nullptr };
  *count = 1;
  return list;
}
inline void free_device_list(abi::Device** list) {
  delete[] list;
}
inline const char* get_device_name(abi::Device*) {
  return "fake0";
}

inline abi::Context* open_device(abi::Device* device) {
  if (fake_fabric().open_error != 0) {
    errno = fake_fabric().open_error;
    return nullptr;
  }
  ++fake_fabric().open_count;
  auto* const context = new abi::Context{};
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->async_fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  fake_fabric().event_descriptor = context->async_fd;
  return context;
}
inline int close_device(abi::Context* context) {
  --fake_fabric().open_count;
  ::close(context->async_fd);
  delete context;
  return 0;
}
inline int query_device(abi::Context*, abi::DeviceAttributes* out) {
  *out = {};
  out->max_sge = 8;
  out->phys_port_cnt = 1;
  return 0;
}
inline int query_port(abi::Context*, std::uint8_t, abi::PortAttributes* out) {
  *out = {};
  out->state = fake_fabric().port_is_up ? abi::kPortActive : abi::PortState{1};
  out->active_mtu = 3;
  out->gid_tbl_len = 3;
  out->link_layer = abi::kLinkEthernet;
  return 0;
}
// 0: a link's own; 1 and 2: 127.0.0.1, as version 1 and 2.
inline int query_gid(abi::Context*, std::uint8_t, int index, abi::Gid* out) {
  *out = {};
  if (index == 0) {
    out->raw[0] = 0xfe;
    out->raw[1] = 0x80;
    out->raw[15] = 1;
  } else {
    out->raw[10] = out->raw[11] = 0xff;
    out->raw[12] = 127;
    out->raw[15] = 1;
  }
  return 0;
}

inline abi::ProtectionDomain* alloc_pd(abi::Context*) {
  ++fake_fabric().opened_count;
  return reinterpret_cast<abi::ProtectionDomain*>(new int);
}
inline int dealloc_pd(abi::ProtectionDomain* domain) {
  delete reinterpret_cast<int*>(domain);
  return 0;
}

inline abi::MemoryRegion* reg_mr(abi::ProtectionDomain* domain, void* at, std::size_t bytes,
                                 int access) {
  FakeFabric& fabric = fake_fabric();
  if (fabric.regions.size() >= fabric.registrations_max) {
    errno = ENOMEM;
    return nullptr;
  }
  const std::uint32_t key = ++fabric.last_number;
  auto* const region = new abi::MemoryRegion{
      nullptr, domain, at, bytes, static_cast<std::uint32_t>(access), key, key + 0x1000000};
  fabric.regions[region->lkey] = region;
  fabric.remote_regions[region->rkey] = region;
  return region;
}
inline int dereg_mr(abi::MemoryRegion* region) {
  fake_fabric().regions.erase(region->lkey);
  fake_fabric().remote_regions.erase(region->rkey);
  delete region;
  return 0;
}

inline abi::CompletionChannel* create_comp_channel(abi::Context* context) {
  auto* const channel = new FakeChannel{};
  channel->context = context;
  channel->fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return channel;
}
inline int destroy_comp_channel(abi::CompletionChannel* channel) {
  ::close(channel->fd);
  delete static_cast<FakeChannel*>(channel);
  return 0;
}
inline abi::CompletionQueue* create_cq(abi::Context* context, int entries, void* cq_context,
                                       abi::CompletionChannel* channel, int) {
  auto* const queue = new FakeQueue{};
  queue->context = context;
  queue->channel = channel;
  queue->cq_context = cq_context;
  queue->entries = static_cast<std::size_t>(entries);
  return queue;
}
inline int destroy_cq(abi::CompletionQueue* queue) {
  delete static_cast<FakeQueue*>(queue);
  return 0;
}
inline int get_cq_event(abi::CompletionChannel* base, abi::CompletionQueue** queue,
                        void** context) {
  auto* const channel = static_cast<FakeChannel*>(base);
  std::uint64_t one = 0;
  if (::read(channel->fd, &one, sizeof one) < 0) return -1;
  *queue = channel->events.front();
  *context = channel->events.front()->cq_context;
  channel->events.pop_front();
  return 0;
}
inline void ack_cq_events(abi::CompletionQueue*, unsigned) {}

inline abi::QueuePair* create_qp(abi::ProtectionDomain* domain, abi::QpInitAttributes* attributes) {
  auto* const pair = new FakePair{};
  pair->pd = domain;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->qp_num = ++fake_fabric().last_number;
  pair->capacity = attributes->cap;
  fake_fabric().pairs[pair->qp_num] = pair;
  return pair;
}
inline int modify_qp(abi::QueuePair* base, abi::QpAttributes* attributes, int mask) {
  auto* const pair = static_cast<FakePair*>(base);
  if ((mask & abi::kMaskState) != 0) pair->state = attributes->qp_state;
  if ((mask & abi::kMaskRemoteQp) != 0) pair->peer = attributes->dest_qp_num;
  return 0;
}
inline int destroy_qp(abi::QueuePair* pair) {
  fake_fabric().pairs.erase(pair->qp_num);
  delete static_cast<FakePair*>(pair);
  return 0;
}
inline int get_async_event(abi::Context* context, abi::AsyncEvent* out) {
  std::uint64_t one = 0;
  if (::read(context->async_fd, &one, sizeof one) < 0) return -1;
  *out = fake_fabric().device_events.front();
  fake_fabric().device_events.pop_front();
  return 0;
}
inline void ack_async_event(abi::AsyncEvent*) {}
inline const char* wc_status_str(abi::WcStatus status) {
  return status == abi::kWcRetryExceeded ? "transport retry counter exceeded" : "an error";
}
inline int fork_init() {
  return 0;
}

}  // namespace fake

// What happens to the device that was opened last: to its port, or to a queue.
inline void fake_device_event(abi::EventType type, void* queue = nullptr) {
  abi::AsyncEvent event{};
  event.event_type = type;
  if (queue == nullptr) {
    event.element.port_num = 1;
  } else {
    event.element.object = queue;
  }
  fake_fabric().device_events.push_back(event);
  const std::uint64_t one = 1;
  (void)!::write(fake_fabric().event_descriptor, &one, sizeof one);
}

inline std::shared_ptr<const Verbs> fake_verbs() {
  static const Verbs verbs{
      .get_device_list = fake::get_device_list,
      .free_device_list = fake::free_device_list,
      .get_device_name = fake::get_device_name,
      .open_device = fake::open_device,
      .close_device = fake::close_device,
      .query_device = fake::query_device,
      .query_port = fake::query_port,
      .query_gid = fake::query_gid,
      .alloc_pd = fake::alloc_pd,
      .dealloc_pd = fake::dealloc_pd,
      .reg_mr = fake::reg_mr,
      .dereg_mr = fake::dereg_mr,
      .create_comp_channel = fake::create_comp_channel,
      .destroy_comp_channel = fake::destroy_comp_channel,
      .create_cq = fake::create_cq,
      .destroy_cq = fake::destroy_cq,
      .get_cq_event = fake::get_cq_event,
      .ack_cq_events = fake::ack_cq_events,
      .create_qp = fake::create_qp,
      .modify_qp = fake::modify_qp,
      .destroy_qp = fake::destroy_qp,
      .get_async_event = fake::get_async_event,
      .ack_async_event = fake::ack_async_event,
      .wc_status_str = fake::wc_status_str,
      .fork_init = fake::fork_init,
      .is_fork_initialized = nullptr,
      .gid_type = [](const std::string&, int,
                     int index) { return index == 1 ? "IB/RoCE v1" : "RoCE v2"; },
      .is_of_interface = [](const std::string&, const std::string&, int) { return true; },
  };
  return {&verbs, [](const Verbs*) {}};
}

// Options for a transport that uses it, also over the loopback address.
inline Options fake_options(std::size_t ring_bytes = std::size_t{1} << 20) {
  Options options;
  options.policy = Policy::kRequired;
  options.device = "fake0";
  options.ring_bytes = ring_bytes;
  return options;
}

}  // namespace byteps::rdma
