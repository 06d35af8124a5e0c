// A World makes transports of one kind that can reach each other; the conformance suite holds them to
// T1..T7 of net/transport.h. To add a transport: derive a World, and add a line to kinds() in
// conformance_test.cc.
//
// The suite polls every living node itself. When no node has an event for it, it calls idle(): a real
// transport sleeps there until bytes come or about a millisecond has passed, a simulated one moves its
// clock to the next thing that happens. So the suite knows no sockets, no sleeping and no clock.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/time.h"
#include "net/transport.h"

namespace byteps::conformance {

using Node = std::size_t;

class World {
 public:
  virtual ~World() = default;

  // A transport that also accepts connections, which it answers with `self`; it refuses those of another
  // job than self.job_id. Nodes are numbered from 0 in the order made.
  virtual Node make_listening(const Hello& self) = 0;
  // A transport that only connects.
  virtual Node make_connecting() = 0;

  // The node's transport; not after kill(node).
  virtual Transport& transport(Node node) = 0;
  // Where others reach a listening node.
  virtual Endpoint address(Node listening) = 0;
  // An address at which nobody listens, and which says so (as a refused connection does).
  virtual Endpoint nobody() = 0;

  // What poll() is to be called with. Never goes back.
  virtual TimeNs now() = 0;
  // Lets time and bytes move; called after a round of polls that gave no event. Real: at most a few
  // milliseconds.
  virtual void idle() = 0;

  // The node's process dies: no flush, no events from it any more. Its peers find out as they do in life.
  virtual void kill(Node node) = 0;
};

}  // namespace byteps::conformance
