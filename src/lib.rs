//! Playhouse runs LLM agents as supervised actors over durable, event-sourced sessions.
