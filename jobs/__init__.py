"""Jobs on stores, one file a job: a frozen spec, `run(spark, spec) -> report`, `main(argv)`."""
