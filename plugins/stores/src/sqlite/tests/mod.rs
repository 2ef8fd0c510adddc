//! Tests of what only the SQLite store promises.
