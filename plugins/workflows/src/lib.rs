//! Workflows over child agents for Playhouse: scripts in QuickJS and native ones.
