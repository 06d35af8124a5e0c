#include "server/server_units.h"

#include <algorithm>

namespace byteps {
namespace {

using State = ServerMember::State;

}  // namespace

void ServerUnits::add(ServerMember& member, Waiter& waiter) {
  units_.push_back({.member = &member, .waiter = &waiter});
}

void ServerUnits::tell(Unit& unit) {
  unit.is_told = true;
  unit.member->request_leave();
  unit.waiter->wake();
}

void ServerUnits::request_leave() {
  leaves_ = true;
  for (Unit& unit : units_) tell(unit);
}

void ServerUnits::request_stop() {
  for (Unit& unit : units_) {
    unit.member->request_stop();
    unit.waiter->wake();
  }
}

// What was opened while the process leaves, because nobody else was there, is to get its place first. One that has none
// does not hear that the job is over.
void ServerUnits::look() {
  std::erase_if(units_, [this](const Unit& unit) {
    const bool has_ended = unit.member->state() == State::kEnded;
    if (has_ended) note_end(unit);
    return has_ended;
  });
  const bool has_place = std::any_of(units_.begin(), units_.end(), [](const Unit& unit) {
    return unit.member->state() == State::kServes;
  });
  for (Unit& unit : units_) {
    const bool serves = unit.member->state() == State::kServes;
    if (!unit.is_told && (past_.is_over || (leaves_ && (serves || !has_place)))) tell(unit);
  }
}

void ServerUnits::note_end(const Unit& unit) {
  const ServerMember& member = *unit.member;
  const Status& end = member.outcome();
  const bool is_replaced = end.is_because_of(CauseKind::kReplaced);
  const bool had_no_place = end.is_ok() && unit.is_told && member.rank() == kNoRank;
  if (!end.is_ok() && !is_replaced && past_.failure.is_ok()) past_.failure = end;
  past_.is_over |= !is_replaced && !had_no_place && !member.has_handed_over();
  past_.has_ended_well |= end.is_ok();
  past_.end = past_.has_ended_well ? Status::ok() : end;
  past_.have_left &= member.has_left();
  past_.has_handed_over |= member.has_handed_over();
}

bool ServerUnits::all_ended() const {
  return std::all_of(units_.begin(), units_.end(),
                     [](const Unit& unit) { return unit.member->state() == State::kEnded; });
}

}  // namespace byteps
