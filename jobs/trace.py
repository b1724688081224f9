"""The job `trace` for spark-submit, from a checkout; see docs/jobs/trace.md."""

import sys
from pathlib import Path

# spark-submit puts this file's folder on the path, but the imports need its parent.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rmqstore_jobs.trace import main

if __name__ == "__main__":
    sys.exit(main())
