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
#include "net/rdma/verbs.h"
#include "net/transport.h"
#include "net/way/way.h"

namespace byteps {

// Exit codes of the executables.
inline constexpr int kExitOk = 0;
inline constexpr int kExitJobFailed = 1;
inline constexpr int kExitBadSettings = 2;  // the message names the variable
inline constexpr int kExitPortInUse = 3;    // so that a launcher may choose another one
inline constexpr int kExitReplaced =
    4;  // a server that was lost for a while: the job goes on without it; or a scheduler, in whose job a later one was

// For executables: a log whose reader has gone is no reason to end. (In a framework's process signals are the host's.)
void ignore_broken_pipes();

std::string host_name();  // "unknown" when it has none

// "hostname:pid", for messages to people.
std::string host_and_pid();

// How this process was started, for messages that say how to start it better (launch.h).
std::string own_command();

// The addresses that others reach this process at, one for each card: DMLC_NODE_HOST, else those of DMLC_INTERFACE,
// else the one from which the scheduler is reached.
Result<std::vector<std::string>> advertised_hosts(const ParsedEnvironment& environment);

// The same, tried again while it only depends on the network: a scheduler's host name may be known later than its job
// starts. Says what it waits for; gives up after the start timeout, or when `stop` is set. `waiter` is slept on.
Result<std::vector<std::string>> await_advertised_hosts(const ParsedEnvironment& environment,
                                                        Clock& clock, Waiter& waiter,
                                                        const std::atomic<bool>& stop,
                                                        const Log& log);

// The settings with the cards that connections go by, where DMLC_INTERFACE names several. Errors as of
// advertised_hosts().
Result<Config> with_interfaces(Role role, const ParsedEnvironment& environment);
// Of the cards that a worker uses. Not to know them is no error: they only tell of the cards.
std::vector<std::string> addresses_of_worker(const Config& config,
                                             const ParsedEnvironment& environment);
// What is wrong with how they are set up, once for a machine.
void warn_about_interfaces(const Config& config, const Log& log);

// What a server tells the others of `host`, its advertised one: the address itself where that is beyond doubt, so that
// no worker has to look the name up. A name stays where it leads to several addresses, or to none of this machine as
// seen from here (a host may be known to itself as 127.0.1.1, or be behind a translation of addresses). May block.
std::string told_host(const std::string& host);

// The settings with what this machine knows of itself: its number, its cards, by their addresses, and their rates
// unless these are set.
Config with_machine(Config config, const std::vector<std::string>& own_addresses);

// The settings with what is drawn for each life of a process anew: a scheduler's incarnation of the job, or the number
// that tells a member's life from those before.
Result<Config> with_lot(Config config, Role role);

// With the number of file descriptors that this process may have. An executable of ours takes all that it can get:
// the usual 1024 are few for a server. In a user's process the limit is the user's.
Config with_descriptors(Config config, Role role);

// Where to listen in order to be reached at `advertised`: there alone, if it is an address (no name) that this machine
// has; otherwise on all its addresses, for it may be known to others by one that it does not have itself.
std::string listening_host(const std::string& advertised);

// Makes the transports of this process, over TCP and the ways that connections of its role have besides: shared memory,
// then RDMA. Opens the library of RDMA, where that is wanted.
class TransportMaker {
 public:
  TransportMaker(const Config& config, Role role, const Log& log);

  // One that says the role in its Hellos, and accepts connections at `listen` (none: only connects). tells_ways: as in
  // rdma::Way.
  Result<std::unique_ptr<ProcessTransport>> make(std::vector<Endpoint> listen,
                                                 bool tells_ways = true) const;

 private:
  Result<std::vector<std::unique_ptr<way::Way>>> make_ways(bool moves_tensors,
                                                           bool tells_ways) const;

  const Config& config_;
  const Role role_;
  const Log& log_;
  const Result<std::shared_ptr<const rdma::Verbs>> verbs_;
};

// "cannot listen at port 9000 (...): ...", for a transport that could not be made; `where` begins with a blank.
Status cannot_listen(const Status& why, const std::string& where);

// A signal ends this process: for the flight recorder.
void record_signal(const Log& log, int number);

// The job has failed: leaves the last events behind, with all that came after the failure, and says where they are.
void say_events(const Log& log, const Status& outcome);

// --check: what a process of the role in DMLC_ROLE would do with this environment, for bps doctor. Lines of a word and
// its text on standard output: byteps, protocol, kernels, devices, warning (any number), then error, or own_address and
// further_address (any number; servers). Behind a warning or an error stand its kind, and about: the variable or file
// that it is about, if there is one.
// Returns kExitOk, or kExitBadSettings after an error.
int check_settings(const Environment& environment);

}  // namespace byteps
