//! The context window: what a conversation weighs, and what of it a request can leave out.

mod attachments;
mod image_budget;
mod image_offload;

pub use attachments::DirectoryAttachments;
pub use image_budget::ImageBudget;
pub use image_offload::ImageOffload;
