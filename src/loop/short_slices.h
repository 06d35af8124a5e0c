// How soon a loop of ours runs when something comes for it, on a core that others use.
#pragma once

namespace byteps {

// Asks the kernel for slices of 0.1 ms for the calling thread, instead of its usual ones of 1 to 3 ms: who has short
// slices runs sooner when it wakes up, and gives way sooner, so its share of the core stays what it is. It needs no
// right. Linux has it since 6.12; before, and where it is refused, nothing changes.
void ask_for_short_slices();

}  // namespace byteps
