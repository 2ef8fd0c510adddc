//! The tool `ralph`: one fresh agent after the other, each with nothing but the objective, the
//! workspace and the last report.
//!
//! - [`report`]: what an agent reports, and when that is a report.
//! - `rounds`: the workflow.
//! - [`tool`]: the tool.

pub mod report;
mod rounds;
pub mod tool;

pub(crate) use self::tool::RALPH_GUIDANCE;
pub use self::{
    report::{Report, ReportStatus},
    tool::{RALPH_SECTION, RalphConfig, ralph_tool},
};
