#include "worker/shard_way.h"

#include "base/planted.h"

namespace byteps {

void ShardWay::up() {
  is_up_ = true;
  if (!PLANTED(undeclared_repeat)) ++connection_;
  if (!PLANTED(forget_said_once)) forgets_said_ = 0;
  inputs_told_ = 0;
}

void ShardWay::down() {
  is_up_ = false;
  if (!PLANTED(credit_leaked)) gate_.forget_sent();
}

void ShardWay::forgets_are_heard(std::uint64_t count) {
  for (; forgets_heard_ < count; ++forgets_heard_) {
    forgets_.pop_front();
    --forgets_said_;
  }
}

}  // namespace byteps
