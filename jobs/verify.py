"""The command `rmqstore verify` for spark-submit, from a checkout; see docs/commands/verify.md.

spark-submit jobs/verify.py STORE --json
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.commands import submitted

if __name__ == "__main__":
    submitted("verify")
