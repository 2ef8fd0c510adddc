//! Child agents for Playhouse: spawn from code and from a model-facing tool.
