//! Fuzz targets of Playhouse. `cargo +nightly fuzz run <target> fuzz/corpus/<target> fuzz/seeds/<target>`.

pub mod checks;
