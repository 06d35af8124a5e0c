#include "net/way/negotiation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "net/way/aside.h"

namespace byteps::way {

Status Negotiation::begin(const Site& site, LinkKeeper& keeper) {
  const auto required =
      std::find_if(ways_.begin(), ways_.end(), [](const auto& way) { return way->is_required(); });
  if (required != ways_.end()) required_ = required->get();
  return connects() ? try_next(site, keeper) : Status::ok();
}

Status Negotiation::try_next(const Site& site, LinkKeeper& keeper) {
  while (next_ < ways_.size()) {
    current_ = ways_[next_++].get();
    if (!current_->is_wanted()) continue;
    Step step = current_->open(site);
    if (take(step, keeper)) return Status::ok();
    Status status = current_->go_without(site, step.failed, must_link(), false);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

bool Negotiation::take(Step& step, LinkKeeper& keeper) {
  if (step.failed.is_ok() && step.link) {
    Link* const link = step.link.get();
    step.failed = keeper.keep(std::move(step.link));
    if (step.failed.is_ok()) link_ = link;
  }
  if (!step.failed.is_ok()) return false;
  attempt_ = std::move(step.attempt);
  if (step.say) say(step.say->kind, step.say->content);
  return true;
}

// ---- what is said

void Negotiation::say(Aside kind, std::span<const std::byte> content) {
  std::vector<std::byte> aside{static_cast<std::byte>(kind)};
  aside.insert(aside.end(), content.begin(), content.end());
  outbox_.push_aside(aside);
}

void Negotiation::decline(const Status& why) {
  declined_ = current_;
  say(Aside::kDecline, encode_reason(why));
}

bool Negotiation::may_switch() const {
  return connects() && link_ && link_->is_ready() && link_->is_proven() && !link_->is_useless() &&
         !outbox_.has_stream_end();
}

// The rest of what this side sends goes through the link.
void Negotiation::switch_over() {
  say(Aside::kSwitch, {});
  outbox_.end_stream();
}

// ---- what is heard

Status Negotiation::heed(const Site& site, LinkKeeper& keeper, std::span<const std::byte> aside) {
  const auto kind = static_cast<Aside>(aside[0]);
  const std::span<const std::byte> content = aside.subspan(1);
  if (kind == Aside::kDecline) return heed_decline(site, keeper, content);
  if (kind == Aside::kSwitch) return content.empty() ? heed_switch(site) : out_of_turn();
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    if (ways_[i]->opening() == kind) return heed_opening(site, keeper, i, content);
  }
  return heed_answer(site, keeper, kind, content);
}

// Ways come in their order, each once.
Status Negotiation::heed_opening(const Site& site, LinkKeeper& keeper, std::size_t index,
                                 std::span<const std::byte> content) {
  if (connects() || link_ || index < next_) return out_of_turn();
  next_ = index + 1;
  current_ = ways_[index].get();
  Result<Step> step = current_->answer(site, content);
  if (!step.is_ok()) return step.status();
  if (take(step.value(), keeper)) return Status::ok();
  decline(step.value().failed);
  return current_->go_without(site, step.value().failed, must_link(), false);
}

Status Negotiation::heed_answer(const Site& site, LinkKeeper& keeper, Aside kind,
                                std::span<const std::byte> content) {
  const bool is_late = has_declined() && declined_->answering() == kind && !attempt_ && !link_;
  if (connects() && is_late) return Status::ok();  // both spoke at once
  if (!attempt_ || current_->answering() != kind) return out_of_turn();
  Result<Step> step = attempt_->heed(site, kind, content);
  if (!step.is_ok()) return step.status();
  if (take(step.value(), keeper)) {
    if (may_switch()) switch_over();
    return Status::ok();
  }
  return heed_failure(site, keeper, step.value().failed);
}

Status Negotiation::heed_decline(const Site& site, LinkKeeper& keeper,
                                 std::span<const std::byte> content) {
  if (has_declined() && !attempt_ && !link_) return Status::ok();  // both spoke at once
  const bool may_decline = link_ ? !link_->reads() : attempt_ != nullptr;
  if (!may_decline) return out_of_turn();
  const Status why = decode_reason(content);
  if (outbox_.has_stream_end()) return why;  // what this side has sent behind the switch is lost
  drop(keeper);
  Status status = current_->go_without(site, why, must_link(), true);
  return status.is_ok() && connects() ? try_next(site, keeper) : status;
}

Status Negotiation::heed_switch(const Site& site) {
  if (has_declined() && !link_) {
    return {Code::kDisconnected,
            std::string(declined_->name()) + " failed while the connection went over to it"};
  }
  if (!link_ || link_->reads()) return out_of_turn();
  if (connects() ? !outbox_.has_stream_end() : !link_->is_ready()) return out_of_turn();
  if (Status status = link_->confirm(); !status.is_ok()) return status;
  if (!connects()) switch_over();
  inbox_.end_messages();
  link_->start_reading();
  current_->taken(site, *link_);
  return Status::ok();
}

// ---- when it cannot be

Status Negotiation::heed_failure(const Site& site, LinkKeeper& keeper, const Status& failure) {
  const Status why = link_ ? current_->explained(failure) : failure;
  drop(keeper);
  decline(why);
  Status status = current_->go_without(site, why, must_link(), false);
  return status.is_ok() && connects() ? try_next(site, keeper) : status;
}

void Negotiation::drop(LinkKeeper& keeper) {
  attempt_.reset();
  if (std::exchange(link_, nullptr) != nullptr) keeper.retire();
}

Status Negotiation::no_link_in_time() const {
  if (link_ && link_->is_ready()) return required_->no_link_in_time(Stage::kNotProven);
  const auto heard = ways_.first(next_);
  const bool is_tried = std::any_of(heard.begin(), heard.end(),
                                    [&](const auto& way) { return way.get() == required_; });
  return required_->no_link_in_time(connects() || is_tried ? Stage::kNotAnswered
                                                           : Stage::kNothingHeard);
}

}  // namespace byteps::way
