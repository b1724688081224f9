"""Jobs on stores, one file per job: a frozen spec, `run(spark, spec) -> report`, `main(argv)`."""
