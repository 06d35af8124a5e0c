// Streams, events and capture.
#include <algorithm>
#include <cstdint>
#include <utility>

#include <unistd.h>

#include "tests/gpu/engine.h"
#include "tests/gpu/thread_state.h"

namespace fake_gpu {

namespace {

constexpr std::uintptr_t kLegacyHandle = 1;
constexpr std::uintptr_t kPerThreadHandle = 2;
constexpr unsigned kCaptureGlobal = 0;
constexpr unsigned kCaptureRelaxed = 2;
constexpr unsigned kStatusActive = 1;
constexpr unsigned kStatusInvalidated = 2;

}  // namespace

// ---- streams

StreamRef Engine::new_stream(Context& context, bool is_blocking) {
  auto stream = std::make_shared<Stream>();
  stream->context = &context;
  stream->actor = next_actor_++;
  stream->is_blocking = is_blocking;
  streams_.emplace(stream.get(), stream);
  return stream;
}

Code Engine::stream_create(StreamRef* stream, bool is_blocking, int priority, bool by_driver) {
  *stream = new_stream(*current(), is_blocking);
  (*stream)->priority = priority;
  (*stream)->by_driver = by_driver;
  return kSuccess;
}

// What is under way on it goes on.
Code Engine::stream_destroy(void* handle) {
  const StreamRef found = stream(handle, "the destruction of a stream");
  if (found == nullptr || found.get() != handle) return kInvalidHandle;
  if (found->is_blocking) found->context->retired.join(found->clock);
  streams_.erase(handle);
  return kSuccess;
}

StreamRef Engine::stream(const void* handle, const char* what) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  Context* const context = current();
  if (value <= kPerThreadHandle && context == nullptr) return nullptr;
  if (value <= kLegacyHandle) return context->legacy;
  if (value == kPerThreadHandle) {
    StreamRef& own = context->of_threads[std::this_thread::get_id()];
    if (own == nullptr) own = new_stream(*context, true);
    return own;
  }
  const auto entry = streams_.find(handle);
  if (entry != streams_.end()) return entry->second;
  violation("handles are of what exists", "%s: stream %p does not exist, or does not any more",
            what, handle);
  return nullptr;
}

// The host knows now that everything on the stream so far is done.
void Engine::learn(Stream& stream) {
  host_.join(stream.clock);
  publish();
  tsan_acquire(stream.strand.tag().get());
}

Code Engine::stream_query(const StreamRef& stream) {
  if (stream->capture != nullptr) {
    stream->capture->is_invalid = true;
    return kCaptureUnsupported;
  }
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  if (stream->done < stream->submitted) return kNotReady;
  learn(*stream);
  return kSuccess;
}

Code Engine::stream_synchronize(const StreamRef& stream, Lock& lock) {
  if (stream->capture != nullptr) {
    stream->capture->is_invalid = true;
    return kCaptureUnsupported;
  }
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  const Clock clock = stream->clock;
  const Code code = wait_until(stream, stream->submitted, lock);
  if (code != kSuccess) return code;
  host_.join(clock);
  publish();
  tsan_acquire(stream->strand.tag().get());
  return kSuccess;
}

Code Engine::wait_until(const StreamRef& stream, std::uint64_t number, Lock& lock) {
  const Context* const context = stream->context;
  changed_.wait(lock, [&] {
    return stream->done >= number || context->lost != kSuccess || is_ending_ || is_stopping_;
  });
  if (is_ending_) return kDeinitialized;
  return context->lost;
}

Code Engine::context_synchronize(Lock& lock) {
  Context* const context = current();
  std::vector<StreamRef> all;
  for (const auto& [handle, stream] : streams_) {
    if (stream->context == context) all.push_back(stream);
  }
  for (const StreamRef& stream : busy_) {  // also those that were destroyed
    if (stream->context == context) all.push_back(stream);
  }
  bool captures = false;
  for (const StreamRef& stream : all) {
    if (stream->capture == nullptr) continue;
    stream->capture->is_invalid = true;
    captures = true;
  }
  if (captures) return kCaptureUnsupported;
  Clock clock = context->retired;
  for (const StreamRef& stream : all) clock.join(stream->clock);
  for (const StreamRef& stream : all) {
    const Code code = wait_until(stream, stream->submitted, lock);
    if (code != kSuccess) return code;
    tsan_acquire(stream->strand.tag().get());
  }
  host_.join(clock);
  publish();
  return kSuccess;
}

Code Engine::host_function(const StreamRef& stream, const char* what,
                           std::function<void()> function) {
  bool is_captured = false;
  const Code code = captured(*stream, &is_captured);
  if (code != kSuccess || is_captured) return code;
  auto work = std::make_shared<Work>();
  work->what = what;
  work->callback = std::move(function);
  return submit(stream, std::move(work));
}

// ---- the way of every operation

Code Engine::submit(const StreamRef& stream, std::shared_ptr<Work> work) {
  enqueue(stream, std::move(work));
  wake();
  return kSuccess;
}

void Engine::enqueue(const StreamRef& stream, std::shared_ptr<Work> work) {
  enter(*stream, *work);
  touch(*stream, *work);
  work->hangs = std::exchange(hangs_, false);
  tsan_release(&work->tag);
  ++stream->submitted;
  stream->queue.push_back(std::move(work));
  if (std::find(busy_.begin(), busy_.end(), stream) == busy_.end()) busy_.push_back(stream);
}

// The operation's place in the order: after what the host knows, after the stream's own, and across the default stream.
void Engine::enter(Stream& stream, Work& work) {
  stream.clock.join(host_);
  const auto follow = [&](const StreamRef& other) {
    stream.clock.join(other->clock);
    if (other->done >= other->submitted) return;
    work.after.push_back(Dependency{other, other->submitted, other->strand.tag()});
  };
  if (stream.is_legacy) {
    const auto blocks = [&](const Stream& other) {
      return &other != &stream && other.context == stream.context && other.is_blocking;
    };
    stream.clock.join(stream.context->retired);
    for (const auto& [handle, other] : streams_) {
      if (blocks(*other)) follow(other);
    }
    for (const StreamRef& other : busy_) {
      if (blocks(*other) && !streams_.contains(other.get())) follow(other);
    }
  } else if (stream.is_blocking) {
    follow(stream.context->legacy);
  }
  stream.clock.advance(stream.actor);
}

// ---- events

Event::~Event() {
  if (file >= 0) ::close(file);
}

Code Engine::event_create(Event** event, bool is_timed, bool by_driver, bool is_interprocess) {
  if (is_interprocess && is_timed) return kInvalidValue;
  auto made = std::make_unique<Event>();
  made->context = current();
  made->is_timed = is_timed;
  made->by_driver = by_driver;
  if (is_interprocess) {
    if (const Code code = make_shared_event(*made); code != kSuccess) return code;
  }
  *event = made.get();
  events_.emplace(*event, std::move(made));
  return kSuccess;
}

// What waits for it goes on waiting for what it had captured.
Code Engine::event_destroy(void* handle) {
  if (event(handle, "the destruction of an event") == nullptr) return kInvalidHandle;
  events_.erase(handle);
  return kSuccess;
}

Event* Engine::event(const void* handle, const char* what) {
  const auto entry = events_.find(handle);
  if (entry != events_.end()) return entry->second.get();
  violation("handles are of what exists", "%s: event %p does not exist, or does not any more", what,
            handle);
  return nullptr;
}

Code Engine::event_record(Event& event, const StreamRef& stream) {
  if (event.context != stream->context) return kInvalidHandle;
  bool is_captured = false;
  const Code code = captured(*stream, &is_captured);
  if (code != kSuccess) return code;
  auto recording = std::make_shared<Recording>();
  event.recording = recording;
  if (is_captured) {
    recording->capture = stream->capture;
    return kSuccess;
  }
  auto work = std::make_shared<Work>();
  work->what = "an event";
  work->recording = recording;
  Work& record = *work;
  const Code submitted = submit(stream, std::move(work));
  if (event.shared != nullptr) record.at_end = note_record(event, stream->clock);
  recording->stream = stream;
  recording->number = stream->submitted;
  recording->clock = stream->clock;
  return submitted;
}

Code Engine::event_query(Event& event) {
  if (event.context->lost != kSuccess) return event.context->lost;
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  if (event.shared != nullptr) return shared_event_query(event);
  const auto recording = event.recording;
  if (recording == nullptr) return kSuccess;
  if (recording->capture != nullptr) {
    recording->capture->is_invalid = true;
    return kCapturedEvent;
  }
  if (recording->stream->done < recording->number) return kNotReady;
  host_.join(recording->clock);
  publish();
  tsan_acquire(&recording->tag);
  return kSuccess;
}

Code Engine::event_synchronize(Event& event, Lock& lock) {
  if (event.shared != nullptr) {
    const Code code = prohibit_in_capture();
    return code != kSuccess ? code : shared_event_synchronize(event, lock);
  }
  const auto recording = event.recording;
  if (recording == nullptr || recording->capture != nullptr) return event_query(event);
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  const Code code = wait_until(recording->stream, recording->number, lock);
  if (code != kSuccess) return code;
  host_.join(recording->clock);
  publish();
  tsan_acquire(&recording->tag);
  return kSuccess;
}

Code Engine::event_elapsed(Event& from, Event& to, float* ms) {
  if (from.recording == nullptr || to.recording == nullptr || !from.is_timed || !to.is_timed) {
    return kInvalidHandle;
  }
  for (Event* const event : {&from, &to}) {
    const Code code = event_query(*event);
    if (code != kSuccess) return code;
  }
  *ms = static_cast<float>(to.recording->done_ns - from.recording->done_ns) / 1e6F;
  return kSuccess;
}

Code Engine::stream_wait(const StreamRef& stream, Event& event) {
  const auto recording = event.recording;
  if (event.shared != nullptr && (recording == nullptr || recording->capture == nullptr)) {
    bool is_captured = false;
    if (const Code code = captured(*stream, &is_captured); code != kSuccess) return code;
    if (is_captured) return kCaptureIsolation;
    auto work = std::make_shared<Work>();
    work->what = "a wait for another process's event";
    work->may_start = captured_by(event, &stream->clock);
    return submit(stream, std::move(work));
  }
  if (recording == nullptr) return kSuccess;  // nothing is captured: no wait
  if (recording->capture != nullptr) {
    if (stream->capture == nullptr && recording->capture->origin != nullptr) {
      stream->capture = recording->capture;  // the stream joins the capture
    }
    if (stream->capture == recording->capture) return kSuccess;
    return stream->capture == nullptr ? kCapturedEvent : kCaptureMerge;
  }
  bool is_captured = false;
  const Code code = captured(*stream, &is_captured);
  if (code != kSuccess) return code;
  if (is_captured) {
    stream->capture->is_invalid = true;
    return kCaptureIsolation;
  }
  stream->clock.join(recording->clock);
  auto work = std::make_shared<Work>();
  work->what = "a wait for an event";
  work->after.push_back(Dependency{recording->stream, recording->number,
                                   std::shared_ptr<void>(recording, &recording->tag)});
  return submit(stream, std::move(work));
}

// ---- capture

// Does the stream capture what is put on it?
Code Engine::captured(Stream& stream, bool* is_captured) {
  if (const Code code = prohibit_legacy(stream); code != kSuccess) return code;
  *is_captured = stream.capture != nullptr;
  return *is_captured && stream.capture->is_invalid ? kCaptureInvalidated : kSuccess;
}

// Work on the legacy stream would have to wait for blocking streams; it cannot wait for one that captures.
Code Engine::prohibit_legacy(const Stream& stream) {
  if (!stream.is_legacy) return kSuccess;
  bool captures = false;
  for (const auto& [handle, other] : streams_) {
    if (other->context != stream.context || !other->is_blocking || !other->capture) continue;
    other->capture->is_invalid = true;
    captures = true;
  }
  return captures ? kCaptureImplicit : kSuccess;
}

Code Engine::prohibit_in_capture() {
  const unsigned mode = thread_state(generation_).capture_mode;
  if (mode == kCaptureRelaxed) return kSuccess;
  bool is_prohibited = false;
  for (const auto& [handle, stream] : streams_) {
    Capture* const capture = stream->capture.get();
    if (capture == nullptr || capture->is_invalid) continue;
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool counts = is_own ? capture->mode != kCaptureRelaxed
                               : mode == kCaptureGlobal && capture->mode == kCaptureGlobal;
    if (!counts) continue;
    capture->is_invalid = true;
    is_prohibited = true;
  }
  return is_prohibited ? kCaptureUnsupported : kSuccess;
}

Code Engine::capture_begin(const StreamRef& stream, unsigned mode) {
  if (stream->is_legacy) return kCaptureUnsupported;
  if (stream->capture != nullptr) return kIllegalState;
  if (mode > kCaptureRelaxed) return kInvalidValue;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream.get();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  return kSuccess;
}

Code Engine::capture_end(const StreamRef& stream, bool* is_valid) {
  const auto capture = stream->capture;
  *is_valid = false;
  if (capture == nullptr) return kIllegalState;
  if (capture->origin != stream.get()) {
    capture->is_invalid = true;
    return kCaptureUnmatched;
  }
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  for (const auto& [handle, other] : streams_) {
    if (other->capture == capture) other->capture = nullptr;
  }
  capture->origin = nullptr;
  *is_valid = !capture->is_invalid;
  return *is_valid ? kSuccess : kCaptureInvalidated;
}

Code Engine::capture_status(const StreamRef& stream, unsigned* status) {
  *status = 0;
  if (stream->is_legacy) {
    for (const auto& [handle, other] : streams_) {
      const bool is_of_it = other->context == stream->context && other->is_blocking;
      if (is_of_it && other->capture != nullptr) return kCaptureImplicit;
    }
  }
  if (stream->capture == nullptr) return kSuccess;
  *status = stream->capture->is_invalid ? kStatusInvalidated : kStatusActive;
  return kSuccess;
}

unsigned Engine::exchange_capture_mode(unsigned mode) {
  return std::exchange(thread_state(generation_).capture_mode, mode);
}

}  // namespace fake_gpu
