"""A replay: its spec, plan with journal, and rows. `replay_targets` has the targets."""
