"""What all jobs share: command line, Spark session, engine, pinned stores, result, provenance."""
