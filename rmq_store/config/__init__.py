"""Configuration: broker.conf, the JSON files under config/, and where a store lies.

The rooms of log and queues define what the settings mean for them. `markers` has lock, abort and
checkpoint.
"""
