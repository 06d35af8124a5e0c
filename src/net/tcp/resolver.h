// Resolver: looks up host names on threads of its own, because getaddrinfo(3) may take seconds (one lost packet is 5 s
// by default, resolv.conf(5)), and has no other form that can be waited for with epoll.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "loop/actor.h"
#include "loop/executor.h"
#include "net/name_book.h"

namespace byteps::tcp {

class Resolver {
 public:
  // Any thread, several at a time; may block.
  using LookUp = std::function<Result<NameBook::Addresses>(const std::string& host)>;

  // `waiter` is woken by each answer, and must outlive the resolver.
  Resolver(Waiter& waiter, LookUp look_up);
  ~Resolver();  // look-ups that are under way are left to themselves
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  struct Answer {
    std::string host;
    Result<NameBook::Addresses> found;
  };
  // Begins a look-up; never blocks. Its answer comes with one of the next take(). An error: it was not begun.
  Status look_up(const std::string& host);
  // The answers since the last call.
  std::vector<Answer> take();

 private:
  // With the threads, which may outlive this object.
  struct Desk {
    std::mutex mutex;  // guards what follows
    Waiter* waiter;    // null: nobody is there any more
    std::vector<Answer> answers;
  };
  const LookUp look_up_;
  const std::shared_ptr<Desk> desk_;
  Executor executor_;
};

}  // namespace byteps::tcp
