// Of what a core has its shell do (base/outputs.h), the things of one kind, in their order.
#pragma once

#include <variant>
#include <vector>

#include "base/outputs.h"

namespace byteps {

template <typename Kind, typename... Kinds>
std::vector<Kind> only(const Outputs<Kinds...>& outputs) {
  std::vector<Kind> found;
  for (const auto& output : outputs) {
    if (const auto* const one = std::get_if<Kind>(&output)) found.push_back(*one);
  }
  return found;
}

}  // namespace byteps
