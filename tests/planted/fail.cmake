# A unit test with a planted fault has to fail (CMakeLists.txt). It may hang: that is a failure.
set(ENV{BYTEPS_PLANTED_FAULT} ${FAULT})
execute_process(COMMAND ${PROGRAM} --gtest_filter=${FILTER} --gtest_fail_fast --gtest_brief=1
                TIMEOUT 60 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(LENGTH "${output}" length)
if(length GREATER 2000)
  string(SUBSTRING "${output}" 0 2000 output)
endif()
message("${output}")
if(result EQUAL 0)
  message(FATAL_ERROR "${FAULT} was not found")
endif()
