"""The command `rmqstore lag` for spark-submit, from a checkout; see docs/commands/lag.md.

spark-submit jobs/lag.py STORE --max-lag 100000
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.commands import submitted

if __name__ == "__main__":
    submitted("lag")
