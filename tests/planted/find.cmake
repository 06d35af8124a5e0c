# Runs PLANTED, the simulator with planted faults, with FAULT until it finds it, and PLAIN, the one without, on the same
# seed. OPTIONS: which faults the worlds have.
set(seeds_max 200)
execute_process(COMMAND ${CMAKE_COMMAND} -E env BYTEPS_PLANTED_FAULT=${FAULT}
                        ${PLANTED} --seeds ${seeds_max} --until-failure --events 0 ${OPTIONS}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(result EQUAL 0)
  message(FATAL_ERROR "the fault was not found in ${seeds_max} seeds")
endif()
if(output MATCHES "FAILED at commit [^:]*: seed ([0-9]+)[^\n]*\n *broken: ([^\n]*)\n *([^\n]*)")
  set(seed ${CMAKE_MATCH_1})
  message("found at seed ${seed}: ${CMAKE_MATCH_2}\n  ${CMAKE_MATCH_3}")
elseif(errors MATCHES "in seed ([0-9]+)")
  set(seed ${CMAKE_MATCH_1})
  message("found at seed ${seed}: the process was aborted\n${errors}")
else()
  message(FATAL_ERROR "it ended with '${result}', but no seed was told:\n${output}${errors}")
endif()
execute_process(COMMAND ${PLAIN} ${OPTIONS} --first-seed ${seed} --seeds 1 RESULT_VARIABLE result OUTPUT_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the same seed fails without the fault:\n${output}")
endif()
