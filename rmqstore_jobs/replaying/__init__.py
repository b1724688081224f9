"""A replay: its spec, command line, plan, rows, ledger and report. `replay_targets` has the
targets."""
