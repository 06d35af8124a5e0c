// NameBook: what a process knows of the addresses of host names, and which names are to be looked up. A core: it looks
// nothing up itself, so the transports have it, the simulated one too.
//
//   N1 A name is looked up once. Its addresses are used for ever after, without asking anybody.
//   N2 When a connection to them failed, the name is looked up anew, beside the attempts that go on with the addresses
//      that are known. So a look-up that takes long, or fails, never keeps anybody from a host that is there.
//   N3 One look-up of a name at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps {

class NameBook {
 public:
  // Addresses in text, in the order to try them.
  using Addresses = std::vector<std::string>;

  struct Known {
    const Addresses* addresses =
        nullptr;           // until the next call; null: none yet, answer() will tell
    bool look_up = false;  // the caller begins a look-up of this name
  };
  // Somebody wants to connect to this host.
  Known ask(const std::string& host);
  // A connection to the known addresses did not come about.
  void failed(const std::string& host);
  // What a look-up found. A failure leaves what is known; where nothing is, the next ask() begins another look-up.
  void answer(const std::string& host, Result<Addresses> found);

  // More names than a job has hosts are not kept: those at rest are forgotten.
  static constexpr std::size_t kNamesMax = 8192;

 private:
  struct Name {
    Addresses addresses;
    bool is_doubted = false;  // look it up at the next ask()
    bool is_asked = false;    // a look-up is under way
  };
  std::map<std::string, Name> names_;
};

}  // namespace byteps
