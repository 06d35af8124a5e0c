"""python -m byteps.tools.doctor_agent: what bps doctor runs on each host, over ssh. It is bpslaunch's agent, which here
answers the doctor's questions too; the launcher knows nothing of them."""

import sys

from byteps.launcher import agent
from byteps.tools.doctor_checks import QUESTIONS

if __name__ == "__main__":
    sys.exit(agent.main(QUESTIONS))
