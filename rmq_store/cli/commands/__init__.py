"""The commands, in modules by what they are about."""
