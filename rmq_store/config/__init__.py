"""Configuration and state files: broker.conf, config/*.json, checkpoint, abort and lock.

Also locates the store for a given folder. The packages of log and queues define what the settings
mean for them.
"""
