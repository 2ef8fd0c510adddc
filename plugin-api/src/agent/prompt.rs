//! What can be sent to an agent.

use playhouse_messages::{content::ContentBlock, message::Message};

/// What can be sent: a text or content blocks, which become a user message with a fresh id, or a
/// whole message.
///
/// ```
/// # use playhouse_messages::content::ContentBlock;
/// # use playhouse_plugin_api::{agent::Prompt, attachment::inspect};
/// # let photo = inspect(b"GIF89a\x03\0\x02\0\0\0\0;", None, 100)?;
/// // `photo` is what the world's attachment store answered.
/// let prompt = Prompt::from([ContentBlock::text("What is this?"), ContentBlock::image(&photo)]);
/// # Ok::<(), playhouse_plugin_api::attachment::AttachmentError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// One text block from a human.
    Text(String),
    /// These blocks from a human.
    Content(Vec<ContentBlock>),
    /// As it is; its role must be `user`.
    Message(Box<Message>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<ContentBlock>> for Prompt {
    fn from(content: Vec<ContentBlock>) -> Self {
        Self::Content(content)
    }
}

impl<const N: usize> From<[ContentBlock; N]> for Prompt {
    fn from(content: [ContentBlock; N]) -> Self {
        Self::Content(content.into())
    }
}

impl From<Message> for Prompt {
    fn from(message: Message) -> Self {
        Self::Message(Box::new(message))
    }
}
