// What a core has its shell do: a list of things of some kinds, each kind a struct, in the order in which they are to
// be done. All cores speak so: functions that say what happened take `now` and the list to append to, tick(now, out)
// is the same for what time brings, and next_deadline() says when it wants to be called. The shell does what the list
// says with an overload for each kind (std::visit), clears the list and passes it in again, so that the steady state
// allocates nothing.
#pragma once

#include <variant>
#include <vector>

namespace byteps {

template <typename... Kinds>
using Outputs = std::vector<std::variant<Kinds...>>;

// One function object of several, one for each kind: std::visit(Overloads{[](const Send&) {...}, ...}, output).
template <typename... Functions>
struct Overloads : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloads(Functions...) -> Overloads<Functions...>;

}  // namespace byteps
