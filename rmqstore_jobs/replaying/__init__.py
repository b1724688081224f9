"""A replay: its spec, command line, plan, rows, journal and report. `replay_targets` has the
targets."""
