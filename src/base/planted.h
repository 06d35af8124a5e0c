// Planted faults: errors put into the code on purpose, to see that the simulator finds them (docs/simulator.md,
// tests/planted). PLANTED(name) is the constant false, unless the file is compiled with -DBYTEPS_PLANTED, as it is for
// the one simulator of tests/planted. So an ordinary build contains nothing of them.
#pragma once

#ifdef BYTEPS_PLANTED
namespace byteps {
// Whether this is the fault that the process was started with; tests/planted/chosen.cc.
bool is_planted(const char* fault);
}  // namespace byteps
#define PLANTED(fault)                                         \
  ([] {                                                        \
    static const bool planted = ::byteps::is_planted(#fault);  \
    return planted;                                            \
  }())
#else
#define PLANTED(fault) false
#endif
