// --machine: what this machine is made of, and the plan for its GPUs, for people and for bps doctor.
#pragma once

#include <string>

#include "app/env.h"

namespace byteps {

// Of the machine whose /sys this folder is, with a rank for each of its GPUs, and what the environment wants. Lines of
// a word and its text on standard output: tree (any number), plan (where there are GPUs), remark (any number). NVLink
// is told of this machine only, by the NVML that is found here.
int show_machine(const std::string& sys, const Environment& environment);

}  // namespace byteps
