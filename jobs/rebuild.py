"""The command `rmqstore rebuild` for spark-submit, from a checkout; see docs/commands/rebuild.md.

spark-submit jobs/rebuild.py STORE --to NEW --verify
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.commands import submitted

if __name__ == "__main__":
    submitted("rebuild")
