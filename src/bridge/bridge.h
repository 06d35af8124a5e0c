// Bridge: exchanges for native code of a framework that wants to be called when one has ended: an
// asynchronous kernel of TensorFlow, an operation of MXNet's engine, a custom call of XLA. It is a
// client of the C interface like any other.
//
//   framework's thread --submit()--> byteps_push_pull ... byteps_queue --> the bridge's thread --> done(context, ...)
//
// done() is called on the bridge's own thread, not on the worker's: what a framework runs in its
// callbacks may take long, and must not keep the network waiting. Python's lock is never taken.
//
// Each shim (libbyteps_<framework>.so) has one Bridge, bridge(): a framework calls kernels without
// a word about whose they are, so there has to be one place to look. Python attaches the job after
// joining it and detaches it before leaving:
//
//   byteps_bridge_attach(job)   ... submit() ...   byteps_bridge_detach(); byteps_leave(job); byteps_bridge_finish()
//
// A forked child has no bridge until it attaches a job of its own: submit() says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string_view>
#include <thread>

#include <sys/types.h>

#include "bridge/residuals.h"
#include "byteps/byteps.h"

namespace byteps::bridge {

// Instead of the address of a tensor's residual or momentum: it has the one that is kept under its name.
inline const auto kResidualByName = reinterpret_cast<float*>(uintptr_t{1});
inline const auto kMomentumByName = reinterpret_cast<float*>(uintptr_t{1});
// Its momentum is kept as the residual of a tensor of its name with this before it would be, which is none: names of
// layers begin with "byteps.".
inline constexpr std::string_view kMomentumPrefix = "momentum of ";

class Bridge {
 public:
  // `code` is the operation's byteps_code; `message` is empty when it is BYTEPS_OK, and valid
  // during the call. It must not throw, and it must not call detach() or finish().
  using Done = void (*)(void* context, int code, const char* message);

  Bridge() = default;
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // The job that submit() uses from now on; its thread starts. finish() must have been called for the one before.
  int attach(byteps_job* job, byteps_error* error);
  // No submit() is in the job any more when it returns, and later ones are refused. What is under way goes on.
  void detach();
  // After byteps_leave: returns when done() has been called for everything that was under way.
  void finish();

  // Any thread; never blocks. BYTEPS_OK: done(context, ...) will be called exactly once, perhaps before this returns.
  // Otherwise it will not be called, and *error says why. `tensor`: as for byteps_push_pull; queue
  // and tag are set here, and the addresses of residual and momentum that are kept here (kResidualByName). What it
  // points to is read before this returns, except for input, output, residual and momentum.
  int submit(byteps_tensor tensor, Done done, void* context, byteps_error* error);

  // BYTEPS_OK, or in a process that was forked from the one that attached why nothing can be submitted. Asked before
  // any lock of a shim is taken: somebody may have held it when the child was made.
  int refuse_in_child(byteps_error* error) const;

  // Of all jobs of this process, one after another.
  Residuals& residuals() { return residuals_; }

  // The job's; 0 when there is none.
  uint32_t rank();
  uint32_t size();

 private:
  struct Pending;
  struct State {
    std::shared_mutex mutex;  // guards job and queue: shared while a job is used
    byteps_job* job = nullptr;
    byteps_queue* queue = nullptr;
    std::thread thread;  // only attach() and finish() touch it
  };
  static void drain(byteps_queue* queue);
  bool is_forked() const;
  void set_kept(byteps_tensor& tensor, Pending& pending);

  Residuals residuals_;
  std::atomic<pid_t> owner_ = 0;  // the process that attached
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

// The one of this shared library.
Bridge& bridge();

// Fills *error, when it is not null; returns `code`.
int refuse(byteps_error* error, int code, const char* message);

}  // namespace byteps::bridge

extern "C" {
// What Python calls (byteps/_core/bridge.py).
BYTEPS_API int byteps_bridge_attach(byteps_job* job, byteps_error* error);
BYTEPS_API void byteps_bridge_detach(void);
BYTEPS_API void byteps_bridge_finish(void);
// The residual that is kept under this name of a tensor, or with kMomentumPrefix before it the momentum: of so many
// elements, zeros at first and when it had another number of them; or with 0, the one that there is. Valid until it is
// dropped or has another number of elements. nullptr: there is none, or no memory for it.
BYTEPS_API float* byteps_bridge_residual(const char* name, uint64_t element_count);
BYTEPS_API uint64_t byteps_bridge_residual_elements(const char* name);
BYTEPS_API void byteps_bridge_drop_residual(const char* name);
}
