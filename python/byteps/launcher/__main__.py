"""bpslaunch, which is also python -m byteps.launcher."""

import sys

from byteps.launcher import standard


def main() -> int:
    return standard.run(_launch)


def _launch() -> int:
    from byteps.launcher.main import main as launch  # not before: Ctrl-C may come while modules are loaded

    return launch()


if __name__ == "__main__":
    sys.exit(main())
