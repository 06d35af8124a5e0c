#include "worker/inputs.h"

#include <string>
#include <utility>

namespace byteps {

void Inputs::finish(HandleId handle, std::optional<std::uint64_t> rounds) {
  if (handle_) {
    return work_.complete(
        handle, {Code::kInvalidArgument,
                 "this rank has said already that it has no more inputs; wait for the others"});
  }
  if (const Status fine = check_rounds(); !fine.is_ok()) return work_.complete(handle, fine);
  handle_ = handle;
  told_rounds_ = rounds;
  first_has_heard_ = false;
}

std::uint64_t Inputs::rounds() const {
  if (handle_ && told_rounds_) return *told_rounds_;
  const Tensor* const most = work_.tensors.most_rounds();
  return most == nullptr ? 0 : round_in_generation(most->round.value);
}

// The next generation's rounds begin at a number of their own. A tensor that has come so far already would be summed
// with what is over.
Status Inputs::check_rounds() const {
  const Tensor* const most = work_.tensors.most_rounds();
  if (most == nullptr) return Status::ok();
  const std::uint32_t rounds = most->round.value - first_round(generation_).value;
  const std::uint32_t rounds_max = work_.config.finishing.rounds_max;
  if (rounds <= rounds_max) return Status::ok();
  return {Code::kUnsupported,
          "tensor '" + most->name + "' has been exchanged " + std::to_string(rounds) +
              " times since the job, or the last end of all inputs, began: with more than " +
              std::to_string(rounds_max) +
              " inputs cannot end together; leave the job and join it again instead"};
}

bool Inputs::on_done(ShardIndex shard, const wire::Header& header) {
  // Which worker was last may look different at other shards, and all must agree.
  if (header.epoch != work_.config.epoch || shard != work_.config.finishing.way || !handle_) {
    return false;
  }
  if (work_.operations.count() > 0 && !work_.config.is_relay) return false;
  if (header.round.value == generation_) {
    first_has_heard_ = true;
    return false;
  }
  const bool is_later =
      work_.config.duties.stands_in && later_by(header.round, Round(generation_)) > 0;
  if (header.round.value != generation_ + 1 && !is_later) return false;
  done_ = header;
  return settle();
}

bool Inputs::settle() {
  if (!done_ || work_.operations.count() > 0) return false;
  const wire::Header header = *std::exchange(done_, std::nullopt);
  generation_ = header.round.value;
  last_ = header.worker;
  work_.tensors.begin_generation(first_round(generation_));
  first_has_heard_ = false;
  end(Status::ok());
  return true;
}

void Inputs::end(const Status& status) {
  done_.reset();
  work_.complete(*std::exchange(handle_, std::nullopt), status);
}

}  // namespace byteps
