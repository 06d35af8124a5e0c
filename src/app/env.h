// The environment: every DMLC_* and BYTEPS_* variable in one table (env.cc), parsed and checked
// once.
//
// The names and meanings are upstream's (bytedance/byteps docs/env.md, ps-lite docs); what differs
// is said in the table. A variable that is malformed or missing gives an error that names it and
// the accepted form; an unknown BYTEPS_* variable gives a warning with the nearest known name.
// docs/env.md is generated from the table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "net/transport.h"

namespace byteps {

// Names and values; a snapshot, so that reading it has no effect on anyone.
using Environment = std::map<std::string, std::string>;

// CUDA's: which devices a process sees, and in which order it counts them.
inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

// The variables of this process that begin with DMLC_, BYTEPS_, PS_ or HOROVOD_, those by which launchers say what they
// have started (launch.h), and kVisibleDevices.
Environment process_environment();

// `settings` is "NAME=value" lines; they override. kInvalidArgument names a line without '='.
Result<Environment> with_settings(Environment base, std::string_view settings);

struct SettingWarning {
  enum class Kind : std::uint8_t {
    kOther,
    kUnknown,      // there is no such variable
    kReadableKey,  // others may read the file with the job key
  };
  Kind kind = Kind::kOther;
  std::string about;  // the variable; kReadableKey: the file
  std::string text;   // one line, for the log
};
const char* name(SettingWarning::Kind kind);  // "other", "unknown", "readable_key"

struct ParsedEnvironment {
  Config config;
  std::vector<std::string> interfaces;  // DMLC_INTERFACE: the network interfaces to be reached by
  std::vector<SettingWarning> warnings;
};

// What the environment says about a process of this role. kInvalidArgument: the message names the variable, and so does
// the cause's detail. A worker that would be alone although a launcher has started several is refused, with the command
// to use instead: `command` is how the program itself is started.
Result<ParsedEnvironment> parse_environment(Role role, const Environment& environment,
                                            std::string_view command = "python train.py");

// Whether a host, as it stands in a variable, is this machine's own loopback: 127.x.x.x, ::1, localhost.
bool is_loopback(std::string_view host);

// The error of a process without a job key whose variable `name` leads out of this machine. It tells both remedies.
Status needs_key(std::string_view name, std::string_view host);

// The table as Markdown: the content of docs/env.md.
std::string environment_reference();

}  // namespace byteps
