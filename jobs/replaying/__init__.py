"""A replay: its spec, command line, plan, rows, ledger and report. Targets live in `replay_targets`."""
