// The fake's own functions.
#include "tests/gpu/fake_gpu.h"

#include <string>

#include "tests/gpu/engine.h"

namespace {

using fake_gpu::Engine;
using Lock = Engine::Lock;

// What these functions do is no call of CUDA's, and is counted under a name of its own.
std::uint32_t call(const char* name, Engine::Needs needs,
                   const std::function<fake_gpu::Code(Engine&, Lock&)>& body) {
  return Engine::of_process().call({name, false, needs}, body);
}

void add(const FakeGpuBytes* all, std::size_t count, std::vector<const void*>* begins,
         std::vector<std::size_t>* sizes) {
  for (std::size_t i = 0; i < count; ++i) {
    begins->push_back(reinterpret_cast<const void*>(all[i].address));
    sizes->push_back(all[i].bytes);
  }
}

struct Begun {
  fake_gpu::StreamRef stream;
  std::shared_ptr<fake_gpu::Work> work;
};

}  // namespace

void fake_gpu_reset() {
  Engine::of_process().reset();
}

void fake_gpu_on_violation(int action) {
  fake_gpu::set_on_violation(static_cast<fake_gpu::OnViolation>(action));
}

std::uint64_t fake_gpu_violations() {
  const fake_gpu::Unseen unseen;
  return fake_gpu::violations();
}

const char* fake_gpu_last_violation() {
  const fake_gpu::Unseen unseen;
  thread_local std::string last;
  last = fake_gpu::last_violation();
  return last.c_str();
}

std::uint64_t fake_gpu_check_leaks() {
  std::uint64_t count = 0;
  call("fake_gpu_check_leaks", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    count = engine.check_leaks();
    return fake_gpu::kSuccess;
  });
  return count;
}

void fake_gpu_fail(const char* symbol, std::uint64_t nth, std::uint32_t code) {
  call("fake_gpu_fail", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    engine.calls().plan(symbol, nth, code);
    return fake_gpu::kSuccess;
  });
}

std::uint64_t fake_gpu_calls(const char* symbol) {
  std::uint64_t count = 0;
  call("fake_gpu_calls", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    count = engine.calls().count(symbol);
    return fake_gpu::kSuccess;
  });
  return count;
}

std::uint64_t fake_gpu_driver_calls() {
  std::uint64_t count = 0;
  call("fake_gpu_driver_calls", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    count = engine.calls().total();
    return fake_gpu::kSuccess;
  });
  return count;
}

std::uint32_t fake_gpu_launch(void* stream, std::uint64_t duration_us, const FakeGpuBytes* reads,
                              std::size_t read_count, const FakeGpuBytes* writes,
                              std::size_t write_count, FakeGpuCompute compute, void* argument) {
  return call("fake_gpu_launch", Engine::Needs::kContext, [&](Engine& engine, Lock&) {
    const fake_gpu::StreamRef on = engine.stream(stream, "a kernel");
    if (on == nullptr) return fake_gpu::Code{fake_gpu::kInvalidHandle};
    fake_gpu::Kernel kernel;
    kernel.duration_ns = static_cast<fake_gpu::TimeNs>(duration_us) * 1000;
    add(reads, read_count, &kernel.reads, &kernel.read_bytes);
    add(writes, write_count, &kernel.writes, &kernel.write_bytes);
    if (compute != nullptr) {
      kernel.compute = [compute, argument](const std::vector<char*>& from,
                                           const std::vector<char*>& to) {
        const std::vector<void*> inputs(from.begin(), from.end());
        const std::vector<void*> outputs(to.begin(), to.end());
        const fake_gpu::Seen seen;
        compute(argument, inputs.data(), outputs.data());
      };
    }
    return engine.launch(std::move(kernel), on);
  });
}

void* fake_gpu_kernel_begin(const char* name, int device, void* stream, const FakeGpuBytes* reads,
                            std::size_t read_count, const FakeGpuBytes* writes,
                            std::size_t write_count) {
  auto begun = std::make_unique<Begun>();
  const auto body = [&](Engine& engine, Lock& lock) -> fake_gpu::Code {
    fake_gpu::Device* const on_device = engine.device(device);
    if (on_device == nullptr) return fake_gpu::kInvalidDevice;
    const fake_gpu::Code code = engine.retain(*on_device, true);
    if (code != fake_gpu::kSuccess) return code;
    engine.push(&on_device->primary);  // the default stream is that of the current context
    const fake_gpu::StreamRef on = engine.stream(stream, name);
    fake_gpu::Context* popped = nullptr;
    engine.pop(&popped);
    if (on == nullptr) return fake_gpu::kInvalidHandle;
    fake_gpu::Kernel kernel;
    kernel.what = engine.interned(name);
    kernel.duration_ns = engine.settings().kernel_ns;
    add(reads, read_count, &kernel.reads, &kernel.read_bytes);
    add(writes, write_count, &kernel.writes, &kernel.write_bytes);
    begun->stream = on;
    return engine.begin_kernel(std::move(kernel), on, lock, &begun->work);
  };
  const auto code = call("fake_gpu_kernel_begin", Engine::Needs::kDriver, body);
  return code == fake_gpu::kSuccess ? begun.release() : nullptr;
}

void fake_gpu_kernel_end(void* kernel) {
  const std::unique_ptr<Begun> begun(static_cast<Begun*>(kernel));
  call("fake_gpu_kernel_end", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    engine.end_kernel(begun->stream, *begun->work);
    return fake_gpu::kSuccess;
  });
}

void* fake_gpu_alias(std::uint64_t address) {
  void* alias = nullptr;
  call("fake_gpu_alias", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    auto* const at = reinterpret_cast<char*>(address);
    const auto block = engine.block_at(at);
    if (block != nullptr) alias = block->alias + (at - block->address);
    return fake_gpu::kSuccess;
  });
  return alias;
}

void fake_gpu_host_access(const void* begin, std::size_t bytes, int is_write) {
  call("fake_gpu_host_access", Engine::Needs::kNothing, [&](Engine& engine, Lock&) {
    engine.touch_by_host(begin, bytes, is_write != 0, "an access by the CPU");
    return fake_gpu::kSuccess;
  });
}
