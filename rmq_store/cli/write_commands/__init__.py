"""Commands that write: rebuild and salvage create a store; recover, retention and offsets change
it."""
