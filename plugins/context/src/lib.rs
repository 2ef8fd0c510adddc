//! The context window: what a conversation weighs, and what of it a request can leave out.
//!
//! - [`TokenMeter`] and [`MeterCell`]: what the next request of a session weighs, and what its
//!   calls cost so far.
//! - [`prices`]: what content weighs without a tokenizer.

// A test that unwraps nothing says less.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod meter;
mod meter_cell;
pub mod prices;
mod surface_prices;
mod usage;

pub use meter::{Baseline, Measurement, MeterError, MeterFault, TokenMeter};
pub use meter_cell::MeterCell;
pub use surface_prices::NodePrice;
pub use usage::{ContextBreakdown, ContextPressure, SessionUsage, TokenUsage};
