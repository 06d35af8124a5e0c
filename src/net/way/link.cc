#include "net/way/link.h"

namespace byteps::way {

Status Link::receive(PeerId peer, std::size_t bytes_max, frame::Staging& staging,
                     frame::EventSpan& out) {
  Status status;
  if (reads_) status = reader_.receive(peer, bytes_max, staging, out, in_);
  reader_.release(in_);
  return status.is_ok() && is_broken() ? damaged() : status;
}

}  // namespace byteps::way
