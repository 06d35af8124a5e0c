# Writes a header with the commit that is checked out, when that has changed. cmake -D SOURCE=... -D FILE=... -P this
execute_process(COMMAND git describe --always --dirty WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${FILE} CONTENT "#define BYTEPS_COMMIT \"${commit}\"\n")
