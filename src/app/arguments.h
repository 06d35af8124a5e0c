// Arguments of the executables. What only they do is apart from process.h, so that the shared library has none of it.
#pragma once

#include <string_view>

namespace byteps {

// Handles --help, --version, --check (process.h) and --machine [/sys] (machine_view.h); any other argument is an error.
// Returns an exit code, or -1 to go on.
int handle_arguments(int argc, char** argv, std::string_view help);

}  // namespace byteps
