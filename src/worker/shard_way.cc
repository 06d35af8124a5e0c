#include "worker/shard_way.h"

#include "base/planted.h"

namespace byteps {

void ShardWay::up() {
  is_up_ = true;
  if (!PLANTED(undeclared_repeat)) ++connection_;
  if (!PLANTED(forget_said_once)) forgets_said_ = 0;
  inputs_told_ = 0;
  words_said_ = 0;
}

void ShardWay::down() {
  is_up_ = false;
  if (!PLANTED(credit_leaked)) gate_.forget_sent();
}

void ShardWay::word_is_said() {
  const auto said = words_.begin() + static_cast<std::ptrdiff_t>(words_said_);
  if ((*said)->lasts) {
    ++words_said_;
  } else {
    words_.erase(said);
  }
}

void ShardWay::take_back(wire::Kind kind, Key key) {
  for (std::size_t at = 0; at < words_.size();) {
    if (words_[at]->kind != kind || words_[at]->key != key) {
      ++at;
      continue;
    }
    words_.erase(words_.begin() + static_cast<std::ptrdiff_t>(at));
    if (at < words_said_) --words_said_;
  }
}

void ShardWay::forgets_are_heard(std::uint64_t count) {
  for (; forgets_heard_ < count; ++forgets_heard_) {
    forgets_.pop_front();
    --forgets_said_;
  }
}

}  // namespace byteps
