// What the executables and the C interface share when they assemble a process: its settings, its log, its addresses.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "app/env.h"
#include "base/log.h"
#include "base/status.h"
#include "loop/clock.h"
#include "net/tcp/tcp_transport.h"

namespace byteps {

// Exit codes of the executables.
inline constexpr int kExitOk = 0;
inline constexpr int kExitJobFailed = 1;
inline constexpr int kExitBadSettings = 2;  // the message names the variable
inline constexpr int kExitPortInUse = 3;    // so that a launcher may choose another one

std::string host_name();  // "unknown" when it has none

// "hostname:pid", for messages to people.
std::string host_and_pid();

// The address that others reach this process at: DMLC_NODE_HOST, else that of DMLC_INTERFACE, else the one from which
// the scheduler is reached.
Result<std::string> advertised_host(const ParsedEnvironment& environment);

// The same, tried again while it only depends on the network: a scheduler's host name may be known later than its job
// starts. Says what it waits for; gives up after the start timeout, or when `stop` is set. `waiter` is slept on.
Result<std::string> await_advertised_host(const ParsedEnvironment& environment, Clock& clock,
                                          Waiter& waiter, const std::atomic<bool>& stop,
                                          const Log& log);

// The settings with what this machine knows of itself: its number, and its card's rate unless that is set.
Config with_machine(Config config, const std::string& own_address);

// Where to listen in order to be reached at `advertised`: on loopback only if that is a loopback address, otherwise on
// all addresses of its family (a machine may be known to others by an address it does not have itself).
std::string listening_host(const std::string& advertised);

// A transport of this process: says `role` in its Hellos, and accepts connections at `listen` (none: only connects).
// tells_ways: as in TcpOptions.
Result<std::unique_ptr<TcpTransport>> make_transport(const Config& config, Role role,
                                                     std::vector<Endpoint> listen, const Log& log,
                                                     bool tells_ways = true);

// A signal ends this process: for the flight recorder.
void record_signal(const Log& log, int number);

// The job has failed: leaves the last events behind, with all that came after the failure, and says where they are.
void say_events(const Log& log, const Status& outcome);

// Handles --help, --version and --check; any other argument is an error. Returns an exit code, or -1 to go on.
int handle_arguments(int argc, char** argv, std::string_view help);

// --check: what a process of the role in DMLC_ROLE would do with this environment, for bps doctor. Lines of a word and
// its text on standard output: byteps, protocol, kernels, warning (any number), then error, or own_address (servers).
// Returns kExitOk, or kExitBadSettings after an error.
int check_settings(const Environment& environment);

}  // namespace byteps
