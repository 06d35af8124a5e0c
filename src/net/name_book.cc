#include "net/name_book.h"

#include <utility>

#include "base/planted.h"

namespace byteps {

NameBook::Known NameBook::ask(const std::string& host) {
  if (names_.size() >= kNamesMax && !names_.contains(host)) {
    std::erase_if(names_, [](const auto& each) { return !each.second.is_asked; });
  }
  Name& name = names_[host];
  Known known;
  known.look_up = !name.is_asked && (name.addresses.empty() || name.is_doubted);
  if (known.look_up) {
    name.is_asked = true;
    name.is_doubted = false;
  }
  if (!name.addresses.empty()) known.addresses = &name.addresses;
  return known;
}

void NameBook::failed(const std::string& host) {
  const auto found = names_.find(host);
  if (found == names_.end()) return;
  found->second.is_doubted = true;
  if (PLANTED(address_forgotten)) found->second.addresses.clear();
}

void NameBook::answer(const std::string& host, Result<Addresses> found) {
  Name& name = names_[host];
  name.is_asked = false;
  if (found.is_ok()) name.addresses = std::move(found).value();
}

}  // namespace byteps
