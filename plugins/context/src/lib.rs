//! The context window: what a conversation weighs, and what of it a request can leave out.
//!
//! - [`TokenMeter`] and [`MeterCell`]: what the next request of a session weighs, and what its
//!   calls cost so far.
//! - [`prices`]: what content weighs without a tokenizer.
//! - [`ImageOffload`]: keeps the images of requests within an [`ImageBudget`].
//! - [`DirectoryAttachments`]: images in files.

// A test that unwraps nothing says less.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attachments;
mod image_budget;
mod image_offload;
mod meter;
mod meter_cell;
pub mod prices;
mod surface_prices;
mod usage;

pub use attachments::DirectoryAttachments;
pub use image_budget::ImageBudget;
pub use image_offload::ImageOffload;
pub use meter::{Baseline, Measurement, MeterError, MeterFault, TokenMeter};
pub use meter_cell::MeterCell;
pub use surface_prices::NodePrice;
pub use usage::{ContextBreakdown, ContextPressure, SessionUsage, TokenUsage, UsageFold};
