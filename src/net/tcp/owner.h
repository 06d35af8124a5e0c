// Which user the other end of a connection within this machine belongs to.
//
// A process without a job key talks over loopback only, where every local user may connect and listen. So the kernel is
// asked whose socket is at the other end: by a netlink socket (sock_diag(7)), which looks the connection up in a hash
// table and answers within the system call; where the kernel has no such thing, in the tables of /proc/net (proc(5)).
// Users are as this process's user namespace sees them.
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "base/status.h"
#include "net/address.h"

namespace byteps::tcp {

// The user who has made the socket at `remote` that is connected to ours at `local`; both are of one network namespace.
// kDisconnected: no process has it any more. kUnsupported: this kernel tells nobody. kSystem: no descriptor.
Result<uid_t> owner_of(const SocketAddress& remote, const SocketAddress& local);

// The two ways, for tests.
Result<uid_t> owner_by_netlink(const SocketAddress& remote, const SocketAddress& local);
Result<uid_t> owner_by_tables(const SocketAddress& remote, const SocketAddress& local);

// Ok when the other end of this connected socket is of our user. kMismatch: it is of another, or nobody can tell; the
// text has the remedy. kDisconnected, kSystem: as above.
Status check_owner(int descriptor);

}  // namespace byteps::tcp
