//! Long-lived teams of Playhouse agents: roster, task board, mailbox.
