#include "base/flight.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace byteps {
namespace {

template <typename Bytes>
Bytes bytes_of(std::string_view text, std::size_t bytes_max) {
  return static_cast<Bytes>(std::min(text.size(), bytes_max));
}

}  // namespace

FlightEvent FlightEvent::of_end(const char* kind, const Status& why) {
  const Cause& cause = why.cause();
  return {.kind = kind,
          .role = cause.who.role ? byteps::name(*cause.who.role) : nullptr,
          .rank = cause.who.rank,
          .cause = byteps::name(cause.kind),
          .host = cause.who.host,
          .detail = cause.detail,
          .text = why.message()};
}

FlightRecorder::FlightRecorder(std::size_t event_count, Clock clock, Writer writer)
    : event_count_(event_count),
      clock_(std::move(clock)),
      writer_(std::move(writer)),
      started_ns_(clock_()) {
  if (event_count_ == 0) return;
  slots_.reserve(event_count_);
  text_ = std::make_unique_for_overwrite<char[]>(text_ring_bytes() + kTextsBytesMax);
}

void FlightRecorder::record(const FlightEvent& event) {
  if (event_count_ == 0) return;
  Slot slot{.event = event,
            .text_bytes = bytes_of<std::uint32_t>(event.text, kTextBytesMax),
            .host_bytes = bytes_of<std::uint16_t>(event.host, kHostBytesMax),
            .detail_bytes = bytes_of<std::uint16_t>(event.detail, kDetailBytesMax)};
  slot.event.host = slot.event.detail = slot.event.text = {};
  if (event.at_ns == kNever) slot.event.at_ns = clock_();
  const std::lock_guard lock(mutex_);
  ++recorded_count_;
  if (event.stays && staying_.size() < kStayingMax) {
    staying_.push_back({.event = slot.event,
                        .host = std::string(event.host.substr(0, slot.host_bytes)),
                        .detail = std::string(event.detail.substr(0, slot.detail_bytes)),
                        .text = std::string(event.text.substr(0, slot.text_bytes))});
    return;
  }
  if (slot.texts_bytes() > 0) {
    slot.texts_begin = text_end_;
    char* to = text_.get() + text_end_ % text_ring_bytes();
    to = std::copy_n(event.host.begin(), slot.host_bytes, to);
    to = std::copy_n(event.detail.begin(), slot.detail_bytes, to);
    std::copy_n(event.text.begin(), slot.text_bytes, to);
    text_end_ += slot.texts_bytes();
  }
  if (slots_.size() < event_count_) {
    slots_.push_back(slot);
  } else {
    slots_[next_slot_] = slot;
    next_slot_ = (next_slot_ + 1) % event_count_;
  }
}

void FlightRecorder::set_rank(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
}

void FlightRecorder::set_epoch(std::uint32_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

void FlightRecorder::set_peers(std::vector<FlightPeer> peers) {
  const std::lock_guard lock(mutex_);
  peers_ = std::move(peers);
}

void FlightRecorder::heard(const char* role, std::uint32_t rank, TimeNs now) {
  if (event_count_ == 0) return;
  const std::lock_guard lock(mutex_);
  for (FlightPeer& peer : heard_) {
    if (peer.rank != rank || std::strcmp(peer.role, role) != 0) continue;
    peer.heard_ns = now;
    return;
  }
  heard_.push_back({.role = role, .rank = rank, .heard_ns = now});
}

void FlightRecorder::note_late(TimeNs due_ns, TimeNs now) {
  if (due_ns == kNever || now - kLateNs <= due_ns) return;
  record({.kind = "late", .number = static_cast<std::uint64_t>(now - due_ns), .at_ns = now});
}

std::string FlightRecorder::leave_behind(const char* how, const Status& why) {
  if (event_count_ == 0 || !writer_) return {};
  FlightEvent end{.kind = "end"};
  if (!why.is_ok()) end = FlightEvent::of_end("end", why);
  end.name = how;
  record(end);
  {
    const std::lock_guard lock(mutex_);
    if (outcome_.is_ok()) {
      how_ = how;
      outcome_ = why;
    }
  }
  const std::lock_guard lock(writing_mutex_);
  written_for_ = how;
  return path_ = writer_(*this);
}

Status FlightRecorder::with_path(const char* how, Status why) {
  std::string path;
  {
    const std::lock_guard lock(writing_mutex_);
    if (std::strcmp(written_for_, how) == 0) path = path_;
  }
  if (path.empty()) path = leave_behind(how, why);
  if (path.empty()) return why;
  return why.in_words(why.message() + " (events: " + path + ")");
}

FlightRecorder::Facts FlightRecorder::facts() const {
  const TimeNs now_ns = clock_();
  const std::lock_guard lock(mutex_);
  Facts facts{rank_, epoch_, peers_, how_, outcome_, recorded_count_, started_ns_, now_ns};
  facts.peers.insert(facts.peers.end(), heard_.begin(), heard_.end());
  return facts;
}

FlightRecorder::Entry FlightRecorder::entry(const Slot& slot) const {
  Entry entry{.event = slot.event};
  if (slot.texts_bytes() == 0) return entry;
  entry.text_lost = text_end_ - slot.texts_begin > text_ring_bytes();
  if (entry.text_lost) return entry;
  const char* from = text_.get() + slot.texts_begin % text_ring_bytes();
  entry.host.assign(from, slot.host_bytes);
  entry.detail.assign(from + slot.host_bytes, slot.detail_bytes);
  entry.text.assign(from + slot.host_bytes + slot.detail_bytes, slot.text_bytes);
  return entry;
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  entries.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    entries.push_back(entry(slots_[(next_slot_ + i) % slots_.size()]));
  }
  for (const Entry& each : staying_) {
    const auto later = std::find_if(entries.begin(), entries.end(), [&](const Entry& one) {
      return one.event.at_ns > each.event.at_ns;
    });
    entries.insert(later, each);
  }
  return entries;
}

}  // namespace byteps
