//! Export and import.
