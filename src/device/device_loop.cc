#include "device/device_loop.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/planted.h"

namespace byteps::device {
namespace {

const char* const kLeft = "this process has left the job";

// Planted: what is begun counts as over.
bool is_unawaited(Order::Kind kind, bool is_alone) {
  if (is_alone) {
    return (kind == Order::Kind::kAwait && PLANTED(alone_call_unawaited)) ||
           (kind == Order::Kind::kIn && PLANTED(alone_copy_in_unawaited));
  }
  return (kind == Order::Kind::kAwait && PLANTED(call_unawaited)) ||
         (kind == Order::Kind::kOut && PLANTED(copy_out_unawaited)) ||
         (kind == Order::Kind::kIn && PLANTED(copy_in_unawaited));
}

}  // namespace

std::size_t DeviceLoop::turn(TimeNs now) {
  if (is_finished_) return 0;
  now_ = now;
  // Before the boxes are emptied: what was posted before it was closed is in them.
  const bool is_closing = is_closing_.load(std::memory_order_acquire);
  orders_.drain(fresh_);
  alone_.drain(fresh_alone_);
  std::size_t work = fresh_.size() + fresh_alone_.size();
  for (Order& order : fresh_) begin(order);
  for (Alone& call : fresh_alone_) begin_alone(std::move(call));
  fresh_.clear();
  fresh_alone_.clear();
  if (is_closing) give_up();
  if (work > 0 || now >= next_look_ns_) {
    work += look();
    if (work > 0) moved_ns_ = now;
    const TimeNs pause = std::clamp((now - moved_ns_) / 16, kSoonNs, kSeldomNs);
    next_look_ns_ = lanes_.empty() ? kNever : now + pause;
  }
  post_reports();
  if (is_closing && lanes_.empty()) {
    close_boxes();
    is_finished_ = true;
  }
  return work;
}

TimeNs DeviceLoop::next_deadline() const {
  return to_report_.empty() ? next_look_ns_ : std::min(next_look_ns_, now_ + kSeldomNs);
}

// ---- orders

void DeviceLoop::begin(Order& order) {
  Device& device = *order.device;
  if (!std::exchange(keeps_out_, true)) device.keep_out_of_captures();
  const Report report{order.kind, order.operation, order.part, order.chunk, Status::ok()};
  switch (order.kind) {
    case Order::Kind::kAwait:
      return put({&device, order.kind, order.lane}, report, 0,
                 [&] { return Result<Event>(std::move(order.ready)); });
    case Order::Kind::kOut:
      return put({&device, order.kind, 0}, report, 0,
                 [&] { return device.copy_out(order.host, order.address, order.bytes); });
    case Order::Kind::kIn:
      return put({&device, order.kind, 0}, report, 0,
                 [&] { return device.copy_in(order.address, order.host, order.bytes); });
    case Order::Kind::kWithin:
      return put({&device, Order::Kind::kIn, 0}, report, 0,
                 [&] { return device.copy_within(order.address, order.source, order.bytes); });
  }
}

// It has its place before it is begun: nothing that is under way is ever forgotten for want of memory.
template <typename Start>
void DeviceLoop::put(Lane lane, const Report& report, std::size_t alone, Start&& start) {
  std::deque<UnderWay>& queue = lanes_[lane];
  queue.push_back({{}, report, alone});
  Status why;
  try {
    Result<Event> event = start();
    why = event.status();
    if (why.is_ok()) queue.back().event = std::move(event).value();
  } catch (const std::bad_alloc&) {
    why = {Code::kSystem, "out of memory", {.kind = CauseKind::kNoMemory}};
  }
  if (why.is_ok() && !is_unawaited(std::get<Order::Kind>(lane), alone != 0)) return;
  UnderWay ended = std::move(queue.back());
  queue.pop_back();
  over(std::move(ended), why);
}

// How much has ended.
std::size_t DeviceLoop::look() {
  std::size_t count = 0;
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    // Going on may add to this lane, and to others.
    while (!lane->second.empty()) {
      UnderWay& oldest = PLANTED(newest_asked) ? lane->second.back() : lane->second.front();
      const Result<bool> happened = oldest.event.device().has_happened(oldest.event);
      if (happened.is_ok() && !happened.value()) break;
      UnderWay ended = std::move(oldest);
      lane->second.pop_front();
      over(std::move(ended), happened.status());
      ++count;
    }
    lane = lane->second.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  return count;
}

void DeviceLoop::over(UnderWay&& ended, const Status& result) {
  if (ended.alone != 0) return go_on(ended.alone, result);
  ended.report.result = result;
  to_report_.push_back(std::move(ended.report));
}

void DeviceLoop::post_reports() {
  if (reports_ == nullptr) to_report_.clear();
  while (!to_report_.empty()) {
    const Status posted = reports_->post(Report(to_report_.front()));
    if (posted.is(Code::kAgain)) return;
    to_report_.pop_front();
  }
}

// ---- tensors of nobody else

void DeviceLoop::begin_alone(Alone&& call) {
  const std::size_t number = ++last_alone_;
  AloneState& state = alone_states_[number];
  state.call = std::move(call);
  Place& place = state.call.place;
  if (!std::exchange(keeps_out_, true)) place.device->keep_out_of_captures();
  state.is_under_way = true;
  put({place.device, Order::Kind::kAwait, place.lane}, {}, number,
      [&] { return Result<Event>(std::move(place.ready)); });
}

template <typename Start>
void DeviceLoop::put_alone(std::size_t number, AloneState::Step step, Start&& start) {
  AloneState& state = alone_states_.at(number);
  state.step = step;
  state.is_under_way = true;
  const auto kind = step == AloneState::Step::kOut ? Order::Kind::kOut : Order::Kind::kIn;
  put({state.call.place.device, kind, 0}, {}, number, std::forward<Start>(start));
}

// Its last step has ended.
void DeviceLoop::go_on(std::size_t number, const Status& result) {
  AloneState& state = alone_states_.at(number);
  state.is_under_way = false;
  if (!result.is_ok()) {
    // A device that fails is a matter of all.
    to_report_.push_back({Order::Kind::kAwait, kNoOperation, 0, 0, result});
    return end_alone(number, result);
  }
  Alone& call = state.call;
  Device& device = *call.place.device;
  switch (state.step) {
    case AloneState::Step::kAwait:
      if (call.bytes == 0) return end_alone(number, result);
      if (call.finish != nullptr) return begin_piece(number);
      if (call.input == call.output) return end_alone(number, result);
      return put_alone(number, AloneState::Step::kWithin,
                       [&] { return device.copy_within(call.output, call.input, call.bytes); });
    case AloneState::Step::kWithin:
      return end_alone(number, result);
    case AloneState::Step::kOut:
      call.finish(state.piece);
      return put_alone(number, AloneState::Step::kIn, [&] {
        return device.copy_in(call.output + state.done_bytes, state.piece.data(),
                              state.piece.size());
      });
    case AloneState::Step::kIn:
      state.done_bytes += state.piece.size();
      return state.done_bytes < call.bytes ? begin_piece(number) : end_alone(number, result);
  }
}

void DeviceLoop::begin_piece(std::size_t number) {
  AloneState& state = alone_states_.at(number);
  Device& device = *state.call.place.device;
  try {
    state.piece.resize(std::min(kPieceBytes, state.call.bytes - state.done_bytes));
  } catch (const std::bad_alloc&) {
    return end_alone(number, {Code::kSystem, "out of memory", {.kind = CauseKind::kNoMemory}});
  }
  put_alone(number, AloneState::Step::kOut, [&] {
    return device.copy_out(state.piece.data(), state.call.input + state.done_bytes,
                           state.piece.size());
  });
}

void DeviceLoop::end_alone(std::size_t number, const Status& result) {
  const auto found = alone_states_.find(number);
  const auto ended = std::move(found->second.call.ended);
  alone_states_.erase(found);
  ended(result);
}

// ---- the end

void DeviceLoop::give_up() {
  const Status why(Code::kCancelled, kLeft);
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    if (std::get<Order::Kind>(lane->first) != Order::Kind::kAwait) {
      ++lane;
      continue;
    }
    std::deque<UnderWay> waiting = std::move(lane->second);
    lane = lanes_.erase(lane);
    for (UnderWay& each : waiting) over(std::move(each), why);
  }
}

void DeviceLoop::close_boxes() {
  orders_.close(fresh_);
  alone_.close(fresh_alone_);
  fresh_.clear();
  for (Alone& call : std::exchange(fresh_alone_, {})) call.ended({Code::kCancelled, kLeft});
}

// A turn threw, for want of memory. What it had taken and not begun is lost: the job ends, and with it whoever waits.
// Calls of nobody else end here. What is under way stays so.
void DeviceLoop::failed(const Status& why) {
  to_report_.push_back({Order::Kind::kAwait, kNoOperation, 0, 0, why});
  for (Alone& call : fresh_alone_) {
    if (call.ended != nullptr) std::exchange(call.ended, nullptr)(why);
  }
  std::vector<std::size_t> idle;
  for (const auto& [number, state] : alone_states_) {
    if (!state.is_under_way) idle.push_back(number);
  }
  for (const std::size_t number : idle) end_alone(number, why);
}

}  // namespace byteps::device
