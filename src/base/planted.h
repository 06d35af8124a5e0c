// Planted faults: errors put into the code on purpose, to see that the simulator finds them (docs/simulator.md,
// tests/planted). PLANTED(name) is the constant false, unless the file is compiled with -DBYTEPS_PLANTED_FAULT=name. So
// an ordinary build contains nothing of them.
#pragma once

#ifdef BYTEPS_PLANTED_FAULT
#include <string_view>
#define BYTEPS_PLANTED_WORD(word) #word
#define BYTEPS_PLANTED_TEXT(macro) BYTEPS_PLANTED_WORD(macro)
#define PLANTED(fault) \
  (std::string_view(#fault) == std::string_view(BYTEPS_PLANTED_TEXT(BYTEPS_PLANTED_FAULT)))
#else
#define PLANTED(fault) false
#endif
