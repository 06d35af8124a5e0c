// Phrases: the small pieces that messages for people are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace byteps {

// "250 ms", "1.5 s", "12 s", "10 min".
std::string duration_text(TimeNs duration_ns);

// Ascending numbers as people write them: "0", "1 and 3", "0-3, 7 and 9".
std::string number_list(const std::vector<std::uint32_t>& ascending);

// A list of ranks: "worker 1", "workers 0-3 and 7".
std::string workers_text(const std::vector<std::uint32_t>& ascending);

// As few digits as tell it from every other number: "0.1", "1e+30".
std::string number_text(double number);

// "worker 1 of 4", "workers 1 and 3 of 4"; `noun` in the singular.
std::string missing_ranks(std::string_view noun, const std::vector<std::uint32_t>& ascending,
                          std::uint32_t of);

// A stranger's text made harmless for a terminal: UTF-8 of at most `bytes_max` bytes. Control characters, and bytes
// that are no UTF-8, become '?'. Cuts between characters, and says so with "...".
std::string printable(std::string_view text, std::size_t bytes_max);

}  // namespace byteps
