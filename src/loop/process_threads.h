// The threads of this process, as the kernel counts them. Only src/loop starts threads; others may have to know whether
// there are any that they have not heard of.
#pragma once

#include <span>

#include <sys/types.h>

namespace byteps {

// The calling thread; asked once of the kernel.
pid_t kernel_thread();

// Whether each thread of this process is the caller, one of `known` (ascending), or one of the core's own, by its name.
// False also where the kernel does not tell.
bool no_thread_beyond(std::span<const pid_t> known);

}  // namespace byteps
