// The engine's frame: how calls begin and end, devices and contexts, the process's end and its children.
#include "tests/gpu/engine.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "tests/gpu/thread_state.h"

namespace fake_gpu {

namespace {

// A child of fork has no device, and the engine's lock may be held by a thread that it has not.
std::atomic<bool> is_child{false};

}  // namespace

ThreadState& thread_state(std::uint64_t generation) {
  thread_local ThreadState state;
  if (state.generation != generation) {
    state = ThreadState{};
    state.generation = generation;
  }
  return state;
}

Engine& Engine::of_process() {
  static Engine* const engine = new Engine;  // never destroyed: threads may outlive main
  return *engine;
}

Engine::Engine()
    : settings_(settings_of_environment()), calls_(settings_), random_(settings_.seed) {
  std::atexit(&Engine::at_exit);
  pthread_atfork(nullptr, nullptr, &Engine::in_child);
}

void Engine::in_child() {
  is_child = true;
}

// The driver is gone for what runs after this in exit().
void Engine::at_exit() {
  if (is_child) return;
  const Unseen unseen;
  Engine& engine = of_process();
  Lock lock(engine.mutex_);
  if (engine.settings_.leaks_at_exit) engine.check_leaks();
  engine.is_ending_ = true;
  engine.stop(lock);
  if (engine.settings_.counts_file.empty()) return;
  std::string name = engine.settings_.counts_file;
  const std::size_t pid = name.find("%p");
  if (pid != std::string::npos) name.replace(pid, 2, std::to_string(::getpid()));
  if (std::FILE* const file = std::fopen(name.c_str(), "w")) {
    std::fputs(engine.calls_.text().c_str(), file);
    std::fclose(file);
  }
}

void Engine::reset() {
  const Unseen unseen;
  Lock lock(mutex_);
  stop(lock);
  for (const StreamRef& stream : busy_) stream->queue.clear();  // work holds its stream
  streams_.clear();
  busy_.clear();
  events_.clear();
  blocks_.clear();
  pinned_.clear();
  devices_.clear();
  clear_violations();
  set_on_violation(OnViolation::kExit);
  settings_ = settings_of_environment();
  calls_ = Calls(settings_);
  random_.seed(settings_.seed);
  host_ = Clock();
  next_actor_ = kHost + 1;
  communicators_ = 0;
  locals_.clear();
  foreign_.clear();
  is_initialised_ = false;
  ++generation_;
}

Code Engine::call(const Symbol& symbol, const std::function<Code(Engine&, Lock&)>& body) {
  if (is_child) return kNotInitialized;
  const Unseen unseen;
  Lock lock(mutex_);
  const Planned* const planned = calls_.begin(symbol.name, symbol.is_driver);
  Context* const context = is_initialised_ && !is_ending_ ? current() : nullptr;
  const Code refused = refusal(symbol, context);
  if (refused != kSuccess) return refused;
  if (planned != nullptr && planned->code != 0) {
    const Code code = planned->code;
    if (is_sticky(code)) lose(context, code);
    return code;
  }
  hangs_ = planned != nullptr;
  const Code code = body(*this, lock);
  hangs_ = false;
  return code;
}

Code Engine::refusal(const Symbol& symbol, const Context* context) const {
  if (is_ending_) return kDeinitialized;
  if (thread_state(generation_).is_in_host_function) {
    violation("host functions make no calls", "%s within a host function", symbol.name);
    return kNotPermitted;
  }
  if (symbol.needs == Needs::kNothing) return kSuccess;
  if (!is_initialised_) return kNotInitialized;
  if (symbol.needs == Needs::kDriver) return kSuccess;
  if (context == nullptr) return kInvalidContext;
  if (!context->is_active()) return kContextIsDestroyed;
  return context->lost;
}

Code Engine::initialise() {
  if (is_initialised_) return kSuccess;
  std::vector<int> physical;
  if (!visible_devices(&physical) || physical.empty()) return kNoDevice;
  for (const int one : physical) {
    Device& device = devices_.emplace_back();
    device.number = static_cast<int>(devices_.size()) - 1;
    device.physical = one;
    device.primary.device = &device;
    device.out.bytes_per_ns = settings_.out_bytes_per_ns;
    device.in.bytes_per_ns = settings_.in_bytes_per_ns;
  }
  is_initialised_ = true;
  return kSuccess;
}

// Those of CUDA_VISIBLE_DEVICES up to the first that there is not.
bool Engine::visible_devices(std::vector<int>* physical) const {
  if (!settings_.has_visible) {
    for (int i = 0; i < settings_.devices; ++i) physical->push_back(i);
    return true;
  }
  std::istringstream list(settings_.visible);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    const long number = std::strtol(item.c_str(), &end, 10);
    if (end == item.c_str() || *end != '\0' || number < 0 || number >= settings_.devices) break;
    const int device = static_cast<int>(number);
    if (std::find(physical->begin(), physical->end(), device) != physical->end()) return false;
    physical->push_back(device);
  }
  return true;
}

Device* Engine::device(int number) {
  const bool is_there = number >= 0 && static_cast<std::size_t>(number) < devices_.size();
  return is_there ? &devices_[static_cast<std::size_t>(number)] : nullptr;
}

Code Engine::retain(Device& device, bool by_runtime) {
  Context& context = device.primary;
  if (context.lost != kSuccess) return context.lost;
  if (by_runtime) {
    context.is_kept_by_runtime = true;
  } else {
    ++context.retains;
  }
  if (context.legacy == nullptr) {
    context.legacy = new_stream(context, true);
    context.legacy->is_legacy = true;
  }
  return kSuccess;
}

Code Engine::release(Device& device) {
  Context& context = device.primary;
  if (context.retains == 0) return kInvalidContext;
  --context.retains;
  if (!context.is_active()) forget_context(context);
  return kSuccess;
}

// The last reference is gone: the context is as new.
void Engine::forget_context(Context& context) {
  for (const StreamRef& stream : busy_) {
    if (stream->context == &context && context.lost == kSuccess) {
      violation(
          "a context's work ends before the context",
          "the primary context of device %d is released for the last time, and %s of a stream is "
          "not done",
          context.device->number, stream->queue.front()->what);
    }
  }
  for (const StreamRef& stream : busy_) {
    if (stream->context == &context) stream->queue.clear();
  }
  const auto is_of_it = [&](const StreamRef& stream) { return stream->context == &context; };
  std::erase_if(busy_, is_of_it);
  std::erase_if(streams_, [&](const auto& entry) { return is_of_it(entry.second); });
  std::erase_if(events_, [&](const auto& entry) { return entry.second->context == &context; });
  std::erase_if(blocks_, [&](const auto& one) { return one.second->device == context.device; });
  std::erase_if(pinned_, [&](const auto& one) { return one.second->context == &context; });
  Device* const device = context.device;
  for (Lane* const lane : {&device->out, &device->in, &device->within}) lane->queue.clear();
  device->used_bytes = 0;
  context = Context{};
  context.device = device;
}

// From now on every call in the context returns `code`, and its work never ends. Null: all contexts.
void Engine::lose(Context* context, Code code) {
  for (Device& device : devices_) {
    if (context == nullptr || context == &device.primary) device.primary.lost = code;
  }
  wake();
  changed_.notify_all();
}

Context* Engine::current() {
  const ThreadState& thread = thread_state(generation_);
  return thread.depth == 0 ? nullptr : thread.contexts[thread.depth - 1];
}

void Engine::set_current(Context* context) {
  ThreadState& thread = thread_state(generation_);
  if (thread.depth > 0) --thread.depth;
  if (context != nullptr) push(context);
}

void Engine::push(Context* context) {
  ThreadState& thread = thread_state(generation_);
  if (thread.depth == ThreadState::kDepthMax) {
    violation("what is pushed is popped", "a thread has pushed %zu contexts", thread.depth);
    return;
  }
  thread.contexts[thread.depth++] = context;
}

bool Engine::pop(Context** context) {
  ThreadState& thread = thread_state(generation_);
  if (thread.depth == 0) return false;
  *context = thread.contexts[--thread.depth];
  return true;
}

bool Engine::is_context(const Context* context) {
  return std::any_of(devices_.begin(), devices_.end(),
                     [&](const Device& device) { return context == &device.primary; });
}

std::size_t Engine::check_leaks() {
  constexpr const char* kRule = "everything is given back";
  std::size_t count = 0;
  for (const Device& device : devices_) {
    if (device.primary.retains == 0) continue;
    ++count;
    violation(kRule, "the primary context of device %d is retained %u times", device.number,
              device.primary.retains);
  }
  const auto report = [&](std::size_t leaked, const char* what) {
    if (leaked == 0) return;
    count += leaked;
    violation(kRule, "%zu %s", leaked, what);
  };
  const auto of_driver = [](const auto& entry) { return entry.second->by_driver; };
  const auto number = [&](const auto& all) {
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), of_driver));
  };
  report(number(streams_), "streams that were not destroyed");
  report(number(events_), "events that were not destroyed");
  report(number(blocks_), "blocks of device memory that were not freed");
  report(number(pinned_), "registrations of host memory that were not undone");
  report(static_cast<std::size_t>(communicators_),
         "communicators that were neither destroyed nor aborted");
  return count;
}

}  // namespace fake_gpu
