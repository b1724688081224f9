"""The command `rmqstore replay` for spark-submit, from a checkout; see docs/commands/replay.md.

spark-submit jobs/replay.py STORE --to NEW
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.replay import main

if __name__ == "__main__":
    sys.exit(main())
