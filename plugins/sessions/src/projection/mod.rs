//! Projections: values that are folded from a session's log.

mod cache;
mod cell;
mod checkpoint;
mod cold;
mod error;
mod keeper;
mod plugin;
mod registry;
#[cfg(test)]
mod tests;
mod unit;

pub use self::{
    cache::{forget, forget_gone},
    checkpoint::{Checkpoint, Row},
    error::ProjectionError,
    plugin::{PROJECTIONS_SERVICE, SessionProjections},
    registry::{Change, Changes, Projections, Snapshot, Told},
    unit::Projection,
};
