"""A replay: its spec, plan, rows and journal. `replay_targets` has the targets."""
