"""The command `rmqstore export` for spark-submit, from a checkout; see docs/commands/export.md.

spark-submit jobs/export.py STORE --to DIR --topic orders
"""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.export import main

if __name__ == "__main__":
    sys.exit(main())
