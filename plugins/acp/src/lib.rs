//! The Agent Client Protocol for Playhouse: agents of other programs as children, and an agent served.
