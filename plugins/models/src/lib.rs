//! Model adapters for Playhouse: scripted and OpenAI-compatible chat completions.
