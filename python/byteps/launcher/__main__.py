"""python -m byteps.launcher: the same as bpslaunch."""

import sys

from byteps.launcher.main import main

sys.exit(main())
