#include "app/arguments.h"

#include <cstdio>

#include "app/codec_rates.h"
#include "app/machine_view.h"
#include "app/process.h"
#include "kernels/kernels.h"
#include "loop/clock.h"

namespace byteps {

int handle_arguments(int argc, char** argv, std::string_view help) {
  if (argc == 1) return -1;
  const std::string_view first(argv[1]);
  if (argc == 2 && (first == "--help" || first == "-h")) {
    std::printf("%.*s", static_cast<int>(help.size()), help.data());
    return kExitOk;
  }
  if (argc == 2 && first == "--check") return check_settings(process_environment());
  if (argc == 2 && first == "--codecs") {
    for (const CodecRates& each : measure_codecs(best_kernels(), monotonic_now)) {
      std::printf("%s\n", text(each).c_str());
    }
    return kExitOk;
  }
  if (argc <= 3 && first == "--machine") {
    return show_machine(argc == 3 ? argv[2] : "/sys", process_environment());
  }
  if (argc == 2 && first == "--version") {
    std::printf("byteps %s\n", BYTEPS_VERSION);
    return kExitOk;
  }
  std::fprintf(stderr, "unknown argument '%s'; settings come from the environment, see --help\n",
               argv[1]);
  return kExitBadSettings;
}

}  // namespace byteps
