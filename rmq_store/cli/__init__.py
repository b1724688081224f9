"""The `rmqstore` command: a store's questions answered in a shell, without Spark and a broker."""
