//! The context window: what a conversation weighs, and what of it a request can leave out.
