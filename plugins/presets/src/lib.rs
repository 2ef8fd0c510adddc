//! Agents composed from files: presets and persona.
