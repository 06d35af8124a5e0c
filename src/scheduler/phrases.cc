#include "scheduler/phrases.h"

namespace byteps {

std::string duration_text(TimeNs duration_ns) {
  const TimeNs ms = duration_ns / kMillisecond;
  if (ms < 1000) return std::to_string(ms) + " ms";
  if (ms < 10'000 && ms % 1000 >= 100) {
    return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
  }
  if (ms >= 600'000) return std::to_string(ms / 60'000) + " min";
  return std::to_string(ms / 1000) + " s";
}

std::string number_list(const std::vector<std::uint32_t>& ascending) {
  std::vector<std::string> pieces;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (last - first >= 2) {
      pieces.push_back(std::to_string(ascending[first]) + "-" + std::to_string(ascending[last]));
    } else {
      for (std::size_t i = first; i <= last; ++i) pieces.push_back(std::to_string(ascending[i]));
    }
    first = last + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) text += i + 1 == pieces.size() ? " and " : ", ";
    text += pieces[i];
  }
  return text;
}

std::string missing_ranks(std::string_view noun, const std::vector<std::uint32_t>& ascending,
                          std::uint32_t of) {
  return std::string(noun) + (ascending.size() > 1 ? "s " : " ") + number_list(ascending) + " of " +
         std::to_string(of);
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  const bool cut = text.size() > bytes_max;
  if (cut) {
    std::size_t end = bytes_max > 3 ? bytes_max - 3 : 0;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string clean(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return cut ? clean + "..." : clean;
}

}  // namespace byteps
