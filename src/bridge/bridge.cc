#include "bridge/bridge.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace byteps::bridge {

struct Bridge::Pending {
  Done done;
  void* context;
  Residuals::Kept residual, momentum;  // which the operation writes
};

int refuse(byteps_error* error, int code, const char* message) {
  if (error != nullptr) {
    error->code = code;
    const std::size_t bytes = strnlen(message, sizeof error->message - 1);
    std::memcpy(error->message, message, bytes);
    error->message[bytes] = '\0';
  }
  return code;
}

int Bridge::attach(byteps_job* job, byteps_error* error) {
  if (is_forked()) {
    (void)state_.release();  // of the parent's thread, which is not here to be joined
    state_ = std::make_unique<State>();
  }
  const std::unique_lock lock(state_->mutex);
  if (state_->thread.joinable()) {
    return refuse(error, BYTEPS_INVALID_ARGUMENT, "the bridge serves another job: finish it first");
  }
  byteps_queue* queue = nullptr;
  const int code = byteps_queue_create(job, &queue, error);
  if (code != BYTEPS_OK) return code;
  try {
    state_->thread = std::thread(drain, queue);
  } catch (const std::system_error& failure) {
    byteps_queue_destroy(queue);
    return refuse(error, BYTEPS_SYSTEM, failure.what());
  }
  state_->job = job;
  state_->queue = queue;
  owner_ = getpid();
  return BYTEPS_OK;
}

void Bridge::detach() {
  if (is_forked()) return;
  const std::unique_lock lock(state_->mutex);
  state_->job = nullptr;
}

void Bridge::finish() {
  if (is_forked() || !state_->thread.joinable()) return;
  state_->thread.join();
  byteps_queue_destroy(std::exchange(state_->queue, nullptr));
}

int Bridge::refuse_in_child(byteps_error* error) const {
  if (!is_forked()) return BYTEPS_OK;
  return refuse(error, BYTEPS_INVALID_ARGUMENT,
                "this process was forked from a member of a job and is none itself: use byteps in "
                "the parent only");
}

int Bridge::submit(byteps_tensor tensor, Done done, void* context, byteps_error* error) {
  if (const int code = refuse_in_child(error); code != BYTEPS_OK) return code;
  std::unique_ptr<Pending> pending(new (std::nothrow) Pending{done, context, nullptr, nullptr});
  if (pending == nullptr) return refuse(error, BYTEPS_SYSTEM, "out of memory");
  try {
    set_kept(tensor, *pending);
  } catch (const std::bad_alloc&) {
    return refuse(error, BYTEPS_SYSTEM,
                  "there is no memory for the residual of error feedback or for momentum");
  }
  const std::shared_lock lock(state_->mutex);
  if (state_->job == nullptr) {
    return refuse(error, BYTEPS_INVALID_ARGUMENT,
                  "BytePS has not been initialized; use bps.init().");
  }
  tensor.queue = state_->queue;
  tensor.tag = reinterpret_cast<uintptr_t>(pending.get());
  byteps_handle handle = 0;
  const int code = byteps_push_pull(state_->job, &tensor, &handle, error);
  if (code == BYTEPS_OK) (void)pending.release();  // drain() deletes it
  return code;
}

// The memory of what is kept by name; of other elements than float32 nothing is coded. May throw std::bad_alloc.
void Bridge::set_kept(byteps_tensor& tensor, Pending& pending) {
  const bool is_coded = tensor.dtype == BYTEPS_FLOAT32;
  if (tensor.residual == kResidualByName) {
    if (is_coded) pending.residual = residuals_.of(tensor.name, tensor.element_count);
    tensor.residual = is_coded ? pending.residual->data() : nullptr;
  }
  if (tensor.momentum == kMomentumByName) {
    const std::string name = std::string(kMomentumPrefix) + tensor.name;
    if (is_coded) pending.momentum = residuals_.of(name, tensor.element_count);
    tensor.momentum = is_coded ? pending.momentum->data() : nullptr;
    if (!is_coded) tensor.momentum_mu = 0;
  }
}

uint32_t Bridge::rank() {
  if (is_forked()) return 0;
  const std::shared_lock lock(state_->mutex);
  return byteps_rank(state_->job);
}

uint32_t Bridge::size() {
  if (is_forked()) return 0;
  const std::shared_lock lock(state_->mutex);
  return byteps_size(state_->job);
}

// The bridge's thread.
void Bridge::drain(byteps_queue* queue) {
  std::array<byteps_ended, 64> ended{};
  byteps_error error{};
  for (;;) {
    uint32_t count = 0;
    const int code = byteps_queue_wait(queue, ended.data(), ended.size(), &count, -1, &error);
    if (code == BYTEPS_CANCELLED) return;
    if (code != BYTEPS_OK) continue;  // nothing in this time
    for (uint32_t i = 0; i < count; ++i) {
      const std::unique_ptr<Pending> pending(
          reinterpret_cast<Pending*>(static_cast<uintptr_t>(ended[i].tag)));
      pending->done(pending->context, ended[i].code,
                    ended[i].code == BYTEPS_OK ? "" : error.message);
    }
  }
}

bool Bridge::is_forked() const {
  const pid_t owner = owner_;
  return owner != 0 && owner != getpid();
}

Bridge& bridge() {
  // Never destroyed: at the exit of a process its thread may still be there.
  static Bridge* const kBridge = new Bridge;
  return *kBridge;
}

}  // namespace byteps::bridge

int byteps_bridge_attach(byteps_job* job, byteps_error* error) {
  return byteps::bridge::bridge().attach(job, error);
}
void byteps_bridge_detach(void) {
  byteps::bridge::bridge().detach();
}
void byteps_bridge_finish(void) {
  byteps::bridge::bridge().finish();
}
float* byteps_bridge_residual(const char* name, uint64_t element_count) {
  byteps::bridge::Residuals& residuals = byteps::bridge::bridge().residuals();
  try {
    const auto kept = element_count > 0 ? residuals.of(name, element_count) : residuals.find(name);
    return kept == nullptr ? nullptr : kept->data();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
uint64_t byteps_bridge_residual_elements(const char* name) {
  const auto kept = byteps::bridge::bridge().residuals().find(name);
  return kept == nullptr ? 0 : kept->size();
}
void byteps_bridge_drop_residual(const char* name) {
  byteps::bridge::bridge().residuals().drop(name);
}
