//! Background work with output for Playhouse agents: start, read, wait, kill, completion notices.
