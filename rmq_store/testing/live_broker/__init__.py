"""A real Apache RocketMQ for tests: started on loopback on a store, read back by its own client."""
