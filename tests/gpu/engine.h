// The fake GPU: devices, contexts, streams, events and memory, and the one thread that does their work.
//
// The only place that knows what CUDA means; fake_driver.cc and fake_cudart.cc give it CUDA's names. README.md has
// the rules with their sources. One object per process, with one lock. A handle of CUDA is the address of one of the
// structs below, for the driver and the runtime alike.
//
// A call that puts work on a stream takes clocks and checks order at once, in the calling thread: what is ordered
// after what follows from the order of calls alone. The thread (runner.cc) then does the work, each operation at a
// random moment of the time that it takes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/gpu/faults.h"
#include "tests/gpu/ipc.h"
#include "tests/gpu/order.h"
#include "tests/gpu/strand.h"

namespace fake_gpu {

enum : Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};
bool is_sticky(Code code);
FAKE_GPU_API const char* name_of(Code code);  // null: not known
FAKE_GPU_API const char* text_of(Code code);

struct Stream;
struct Work;

// A copy engine of a device: one copy at a time, in the order in which they could have begun.
struct Lane {
  double bytes_per_ns = 0;  // 0: at once
  std::deque<Work*> queue;
};

struct Device;
struct Context {
  Device* device = nullptr;
  unsigned retains = 0;  // by the driver's callers
  bool is_kept_by_runtime = false;
  Code lost = kSuccess;  // sticky: what every call returns
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> of_threads;
  Clock retired;  // of blocking streams that were destroyed
  bool is_active() const { return retains > 0 || is_kept_by_runtime; }
};

struct Device {
  int number = 0;    // as the process counts
  int physical = 0;  // as the machine counts
  Context primary;
  Lane out, in, within;
  std::size_t used_bytes = 0;
};

// Memory of a device, mapped twice: where it is given out the CPU may not touch it.
struct Block {
  // -1: a file of its own; otherwise that of another process, which it owns from now on.
  Block(Device* device, std::size_t bytes, int file = -1);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Device* const device;
  const std::size_t bytes;         // that were asked for
  const std::size_t mapped_bytes;  // whole pages
  char* address = nullptr;         // null: there is no memory
  char* alias = nullptr;           // the same bytes, for the engines
  bool by_driver = false;
  History history;
  // Of ipc.h:
  const bool is_imported;
  int file = -1;
  SharedBlock* shared = nullptr;  // null: not shared yet
  std::pair<int, int> exporter;   // of what is imported: process and its file
  unsigned opened = 0;            // times
};

// Host memory that is locked to its pages.
struct Pinned {
  char* begin = nullptr;
  std::size_t bytes = 0;
  Context* context = nullptr;
  bool by_driver = false;
  bool is_ours = false;  // allocated by us, not registered
  History history;
};

// Bytes that an operation uses. Neither block nor pinned: host memory that may be paged.
struct Range {
  std::shared_ptr<Block> block;
  std::shared_ptr<Pinned> pinned;
  char* at = nullptr;      // where the engine finds them
  std::size_t offset = 0;  // in the block or the pinned memory
  std::size_t bytes = 0;
  bool is_written = false;
};

struct Capture {
  Stream* origin = nullptr;
  unsigned mode = 0;
  std::thread::id thread;
  bool is_invalid = false;
};

// What an event has captured: the work of a stream up to a number.
struct Recording {
  std::shared_ptr<Stream> stream;
  std::uint64_t number = 0;
  Clock clock;
  std::shared_ptr<Capture> capture;  // recorded into a graph: there is no such work
  TimeNs done_ns = 0;
  char tag = 0;  // of tsan.h: released when the work is done
};

struct Event {
  Context* context = nullptr;
  bool by_driver = false;
  bool is_timed = false;
  std::shared_ptr<Recording> recording;  // null: never recorded
  // Of ipc.h:
  std::shared_ptr<SharedEvent> shared;  // null: of this process alone
  int file = -1;                        // of what was made here
  Event() = default;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

// Work of a stream up to a number must have been done.
struct Dependency {
  std::shared_ptr<Stream> stream;
  std::uint64_t number = 0;
  std::shared_ptr<void> tag;  // of tsan.h: released when the work is done
};

// One operation of a stream.
struct Work {
  const char* what = "";
  std::vector<Dependency> after;
  Lane* lane = nullptr;
  TimeNs duration_ns = 0;
  bool is_late = false;            // the effect comes at the end, and not at some moment
  std::function<void()> effect;    // without the lock
  std::function<void()> callback;  // the user's, as the host sees it
  std::vector<Range> ranges;
  std::shared_ptr<Recording> recording;
  std::function<bool()> may_start;  // of what another process does: asked again and again
  std::function<void()> at_end;
  bool hangs = false;
  bool is_held = false;  // until end_kernel()
  char tag = 0;          // of tsan.h: released when it was submitted
  // Of the runner:
  bool is_queued = false;  // in its lane
  bool is_started = false;
  bool is_done = false;  // the effect
  TimeNs effect_ns = 0;
  TimeNs end_ns = 0;
};

struct Stream {
  Context* context = nullptr;
  ActorId actor = 0;
  bool is_blocking = true;  // orders itself with the legacy default stream
  bool is_legacy = false;
  bool by_driver = false;
  int priority = 0;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::uint64_t submitted = 0;
  std::uint64_t done = 0;
  std::deque<std::shared_ptr<Work>> queue;
  Strand strand;
};
using StreamRef = std::shared_ptr<Stream>;

enum class Direction { kToHost, kToDevice, kOnDevice, kOnHost };

struct Copy {
  const char* what = "";
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  Direction direction = Direction::kToHost;
  bool is_sync = false;
  bool is_strict = true;  // the stream must be one of the memory's device
};

// A kernel, as the fake has them: what it reads and writes, and what computes it.
struct Kernel {
  const char* what = "kernel";
  TimeNs duration_ns = 0;
  std::vector<const void*> reads, writes;
  std::vector<std::size_t> read_bytes, write_bytes;
  std::function<void(const std::vector<char*>& reads, const std::vector<char*>& writes)> compute;
  std::vector<Dependency> after;
  bool is_held = false;  // it ends with end_kernel(), which may be called as soon as `compute` runs
};

class FAKE_GPU_API Engine {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // Of the process. Made by the first call.
  static Engine& of_process();

  // How a call of CUDA begins and ends. `body` runs with the lock. What stands in its way (not initialised, the
  // process ends, an injected error, no context, a context that is lost) is returned instead.
  enum class Needs { kNothing, kDriver, kContext };
  struct Symbol {
    const char* name;
    bool is_driver;
    Needs needs;
  };
  Code call(const Symbol& symbol, const std::function<Code(Engine&, Lock&)>& body);

  // Everything as at the beginning; settings are read again. Nothing may be calling.
  void reset();

  // ---- all below: with the lock

  Code initialise();
  std::size_t device_count() const { return devices_.size(); }
  Device* device(int number);
  const Settings& settings() const { return settings_; }
  Calls& calls() { return calls_; }

  Code retain(Device&, bool by_runtime);
  Code release(Device&);
  Context* current();
  void set_current(Context*);  // in place of the top of the stack; null: none
  void push(Context*);
  bool pop(Context** context);  // false: there is none
  bool is_context(const Context*);

  Code stream_create(StreamRef* stream, bool is_blocking, int priority, bool by_driver);
  Code stream_destroy(void* handle);
  // The stream of a handle; 0 and 1 are the current context's legacy stream, 2 is the thread's own. Null: it is none
  // (a violation).
  StreamRef stream(const void* handle, const char* what);
  Code stream_query(const StreamRef&);
  Code stream_synchronize(const StreamRef&, Lock&);
  Code context_synchronize(Lock&);
  Code stream_wait(const StreamRef&, Event&);
  Code host_function(const StreamRef&, const char* what, std::function<void()> function);

  Code event_create(Event** event, bool is_timed, bool by_driver, bool is_interprocess);
  Code event_destroy(void* handle);
  Event* event(const void* handle, const char* what);  // null: it is none (a violation)
  Code event_record(Event&, const StreamRef&);
  Code event_query(Event&);
  Code event_synchronize(Event&, Lock&);
  Code event_elapsed(Event& from, Event& to, float* ms);

  // ipc.cc
  Code ipc_memory_handle(const void* address, IpcHandle* handle);
  Code ipc_open_memory(const IpcHandle& handle, void** address);
  Code ipc_close_memory(void* address, Lock&);
  Code ipc_event_handle(Event&, IpcHandle* handle);
  Code ipc_open_event(const IpcHandle& handle, Event** event, bool by_driver);

  Code allocate(void** address, std::size_t bytes, bool by_driver);
  Code free(void* address, bool by_driver, Lock&);
  Code pin(void* begin, std::size_t bytes, bool by_driver, bool is_ours);
  Code unpin(void* begin, bool is_ours, Lock&);
  // Of the memory of an address; null: none.
  std::shared_ptr<Block> block_at(const void* address);
  std::shared_ptr<Pinned> pinned_at(const void* address);
  // The host reads or writes memory: is it ordered after the copies that use it?
  void touch_by_host(const void* address, std::size_t bytes, bool is_write, const char* what);

  Code copy(const Copy&, const StreamRef&, Lock&);
  Code fill(const char* what, void* to, int byte, std::size_t bytes, const StreamRef&);
  Code launch(Kernel kernel, const StreamRef&, std::shared_ptr<Work>* work = nullptr);
  // A kernel that the calling thread computes: returns when it is its turn, and the stream waits for the end.
  Code begin_kernel(Kernel kernel, const StreamRef&, Lock&, std::shared_ptr<Work>* work);
  void end_kernel(const StreamRef&, Work&);

  Code capture_begin(const StreamRef&, unsigned mode);
  Code capture_end(const StreamRef&, bool* is_valid);
  Code capture_status(const StreamRef&, unsigned* status);
  unsigned exchange_capture_mode(unsigned mode);
  // Of calls that may not be made while a stream captures. An error, and captures are invalid.
  Code prohibit_in_capture();

  // Communicators of NCCL that there are (fake_nccl.cc).
  void count_communicator(int change) { communicators_ += change; }

  // Reports each thing that a caller of the driver has not given back. How many there were.
  std::size_t check_leaks();

  // The same text, for ever.
  const char* interned(const std::string& text) { return names_.insert(text).first->c_str(); }

 private:
  Engine();

  Code refusal(const Symbol& symbol, const Context* context) const;
  bool visible_devices(std::vector<int>* physical) const;
  void forget_context(Context&);
  void lose(Context*, Code code);
  StreamRef new_stream(Context&, bool is_blocking);

  Code submit(const StreamRef&, std::shared_ptr<Work>);
  void enqueue(const StreamRef&, std::shared_ptr<Work>);
  void enter(Stream&, Work&);
  void touch(Stream&, const Work&);
  Code captured(Stream&, bool* is_captured);
  Code wait_until(const StreamRef&, std::uint64_t number, Lock&);
  void learn(Stream&);
  bool find(const void* at, std::size_t bytes, bool is_written, const char* what, Range* range);
  bool find_host(const void* at, std::size_t bytes, bool is_written, const char* what,
                 Range* range);
  bool find_both(const Copy&, Range* to, Range* from);
  bool fits_stream(const Copy&, const Stream&, const Range& to, const Range& from) const;
  void load_copy(const Copy&, const Range& to, const Range& from, Work*);
  Lane* lane_of(Direction, const Stream&, const Range& to, const Range& from) const;
  bool load_kernel(Kernel&, const Stream&, Work*);
  // Work that is not done and uses some of the bytes; `writes_only`: that writes them.
  const Work* user_of(const Range&, bool writes_only) const;
  void drain(const Range&, Lock&);
  Code prohibit_legacy(const Stream&);
  SharedTick shared_tick(ActorId actor, Tick tick) const;
  ActorId local_actor(const SharedTick& of);
  void check_openers(const Block&) const;
  void touch_shared(const Range&, const Use&, const Clock&);
  void note_shared(SharedBlock&, std::size_t begin, std::size_t end, const Use&, bool is_write);
  void publish();
  Code make_shared_event(Event&);
  std::function<void()> note_record(const Event&, const Clock&);
  std::function<bool()> captured_by(const Event&, Clock* clock);
  Code shared_event_query(const Event&);
  Code shared_event_synchronize(const Event&, Lock&);
  void invalidate_captures();

  // runner.cc
  void run();
  TimeNs advance_all(Lock&, bool* progressed);
  bool advance(const StreamRef&, TimeNs now, TimeNs* next, Lock&);
  bool start(const StreamRef&, Work&, TimeNs now);
  void do_effect(const StreamRef&, const std::shared_ptr<Work>&, Lock&);
  void complete(const StreamRef&, TimeNs now);
  void wake();
  void stop(Lock&);
  static void at_exit();
  static void in_child();

  std::mutex mutex_;
  std::condition_variable changed_;  // something was done
  std::condition_variable work_;     // there is something to do
  Settings settings_;
  Calls calls_;
  std::mt19937_64 random_;
  bool is_initialised_ = false;
  bool is_ending_ = false;
  bool hangs_ = false;  // what this call submits
  std::uint64_t generation_ = 1;
  std::deque<Device> devices_;
  ActorId next_actor_ = kHost + 1;
  Clock host_;
  std::unordered_map<const void*, StreamRef>
      streams_;  // all that may be named, and default streams
  std::unordered_map<const void*, std::unique_ptr<Event>> events_;
  std::map<char*, std::shared_ptr<Block>> blocks_;
  std::map<char*, std::shared_ptr<Pinned>> pinned_;
  std::set<std::string> names_;
  int communicators_ = 0;
  std::map<std::pair<int, ActorId>, ActorId> locals_;  // actors of other processes
  std::map<ActorId, std::pair<int, ActorId>> foreign_;
  std::vector<StreamRef> busy_;  // with something in their queues
  std::thread thread_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  bool has_news_ = false;
};

// Memory of the CPU for use by the engines: true where all its pages are there.
bool is_mapped(const void* begin, std::size_t bytes);

}  // namespace fake_gpu
