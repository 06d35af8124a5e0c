#include "net/tcp/resolver.h"

#include <utility>

namespace byteps::tcp {
namespace {

constexpr std::size_t kLookUpsMax = 2 * NameBook::kNamesMax;
// So that one slow answer does not keep those behind it waiting.
constexpr std::size_t kThreadsMax = 4;

}  // namespace

Resolver::Resolver(Waiter& waiter, LookUp look_up)
    : look_up_(std::move(look_up)),
      desk_(std::make_shared<Desk>()),
      executor_("byteps-names", kLookUpsMax, kThreadsMax) {
  desk_->waiter = &waiter;
}

Resolver::~Resolver() {
  const std::lock_guard lock(desk_->mutex);
  desk_->waiter = nullptr;
}

Status Resolver::look_up(const std::string& host) {
  return executor_.post([desk = desk_, ask = look_up_, host] {
    Result<NameBook::Addresses> found = ask(host);
    const std::lock_guard lock(desk->mutex);
    if (desk->waiter == nullptr) return;
    desk->answers.push_back({host, std::move(found)});
    desk->waiter->wake();
  });
}

std::vector<Resolver::Answer> Resolver::take() {
  const std::lock_guard lock(desk_->mutex);
  return std::exchange(desk_->answers, {});
}

}  // namespace byteps::tcp
