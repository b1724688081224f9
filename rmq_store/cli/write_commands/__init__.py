"""Commands that write: rebuild and salvage a new store; recover, retention and offsets this one."""
