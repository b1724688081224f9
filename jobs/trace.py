"""The command `rmqstore trace` for spark-submit, from a checkout; see docs/commands/trace.md.

spark-submit jobs/trace.py STORE ORDER_4711
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.commands import submitted

if __name__ == "__main__":
    submitted("trace")
