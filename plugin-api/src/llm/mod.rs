//! The seam to language models: adapters, their registry, and prepared calls.

use bytes::{BufMut, Bytes, BytesMut};
use futures::{future::BoxFuture, stream::BoxStream};
pub use playhouse_messages::retry::{Backoff, RetryPolicy};
use playhouse_messages::{
    chunk::{Failure, StreamChunk},
    config::{CallConfig, Route, SystemPromptUpdate, ToolList, ToolUpdate},
    id::SessionId,
    message::{Message, SharedMessage},
};
use serde::{Deserialize, Serialize};

use crate::cancel::CancelToken;

mod call;
mod error;
mod images;
mod normalise;
mod outgoing;
mod prepare;
mod project;
pub mod protocol_check;
mod registry;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod scenario;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod wrapped;

pub use call::{CallInput, DirectCall, ModelCall, ModelStream, StepCall};
pub use error::{LlmError, ModelPart};
pub use images::{LoadedImages, image_handle, offloaded_image};
pub use normalise::{ChunkStream, normalise, terminal_chunk};
pub use outgoing::Outgoing;
pub use prepare::{EncodingKey, PreparedCall};
pub use registry::{AdapterRegistration, LlmRegistry, ProviderInfo, RegistrationGuard};

/// Speaks one provider's wire.
///
/// An adapter never parses tool arguments, never retries, resolves credentials per call, honours
/// the cancel token, and reports usage before finish and nothing after it. It may fail in two
/// sanctioned ways: an `Err` item, or a `Finish` chunk with reason `error` or `aborted`; the loop
/// sees both as the latter.
pub trait LlmAdapter: Send + Sync + 'static {
    /// The provider's display name. The id is the route that it was registered for.
    fn display_name(&self, provider: &str) -> String {
        provider.to_owned()
    }

    /// How failed calls of this route may be retried; captured at registration.
    fn retry_policy(&self, _provider: &str) -> Option<RetryPolicy> {
        None
    }

    /// The models that the route is known to serve. Advisory: it never restricts.
    fn models<'a>(
        &'a self,
        _provider: &'a str,
        _cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<Vec<ModelInfo>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// What is known of one model. Must keep provider and id.
    fn resolve<'a>(
        &'a self,
        route: &'a Route,
        cancel: &'a CancelToken,
    ) -> BoxFuture<'a, Result<ModelInfo, Failure>>;

    /// One message as it stands in the wire request's message array, or empty for none. May be
    /// several array elements, comma separated. Pure: the same input gives the same bytes, which
    /// the caller keeps and reuses for every later request on the same route.
    fn encode(&self, input: &EncodeInput<'_>) -> Result<Bytes, Failure>;

    /// The images of tool messages that stand one after the other, if the wire cannot hold them in
    /// the messages themselves: an element behind the last of them. Asked for only if there are any.
    /// Empty, the default, for wires that can. Pure as [`LlmAdapter::encode`].
    fn encode_result_images(&self, _input: &ResultImagesInput<'_>) -> Result<Bytes, Failure> {
        Ok(Bytes::new())
    }

    /// What stands before and after the message array of the request body. Asked for before anything
    /// is encoded, so that what it refuses costs nothing.
    fn frame(&self, request: &FrameInput<'_>) -> Result<Frame, Failure>;

    /// Starts the call. Dropping the stream aborts it.
    fn stream(&self, request: LlmRequest) -> BoxStream<'static, Result<StreamChunk, Failure>>;
}

/// What [`LlmAdapter::encode`] may use.
#[derive(Debug, Clone, Copy)]
pub struct EncodeInput<'a> {
    /// The route that the message goes to.
    pub route: &'a Route,
    /// The message, projected for the route.
    pub message: &'a Message,
    /// The bytes of its images.
    pub images: &'a LoadedImages,
}

/// What [`LlmAdapter::encode_result_images`] may use.
#[derive(Debug, Clone, Copy)]
pub struct ResultImagesInput<'a> {
    /// The route that the messages go to.
    pub route: &'a Route,
    /// Those of the tool messages that show images, projected for the route.
    pub results: &'a [SharedMessage],
    /// The bytes of the images.
    pub images: &'a LoadedImages,
}

/// What [`LlmAdapter::frame`] may use.
#[derive(Debug, Clone, Copy)]
pub struct FrameInput<'a> {
    /// The resolved configuration.
    pub config: &'a CallConfig,
    /// The conversation, projected for the route: for wires whose system prompt stands outside the
    /// message array.
    pub messages: &'a [SharedMessage],
    /// The tools to declare.
    pub tools: &'a ToolList,
    /// What the call is for, if not an agent's step.
    pub purpose: Option<Purpose>,
}

/// The request body around the message array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// Up to and including the array's `[`.
    pub prefix: Bytes,
    /// From the array's `]` to the end.
    pub suffix: Bytes,
}

/// What a call is for when it is not an agent's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Summarising history.
    Compaction,
    /// Naming a session.
    SessionTitle,
}

/// One call as an adapter gets it.
#[derive(Debug, Clone)]
pub struct LlmRequest {
    /// The resolved configuration.
    pub config: CallConfig,
    /// The conversation.
    pub messages: Vec<SharedMessage>,
    /// The tools to declare.
    pub tools: ToolList,
    /// The session, for attribution.
    pub session_id: Option<SessionId>,
    /// What the call is for, if not an agent's step.
    pub purpose: Option<Purpose>,
    /// The encoded body: frame prefix, encoded messages, frame suffix.
    pub body: RequestBody,
    /// Fires when the caller no longer wants the answer.
    pub cancel: CancelToken,
}

/// A request body made of shared pieces: old bytes and new bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestBody {
    frame: Frame,
    messages: Vec<Bytes>,
}

impl RequestBody {
    /// Puts the encoded messages into the frame; empty encodings are left out.
    pub fn new(frame: Frame, messages: impl IntoIterator<Item = Bytes>) -> Self {
        Self { frame, messages: messages.into_iter().filter(|bytes| !bytes.is_empty()).collect() }
    }

    /// The whole body.
    pub fn to_bytes(&self) -> Bytes {
        let mut body = BytesMut::with_capacity(self.len_bytes());
        body.put_slice(&self.frame.prefix);
        for (index, message) in self.messages.iter().enumerate() {
            if index > 0 {
                body.put_u8(b',');
            }
            body.put_slice(message);
        }
        body.put_slice(&self.frame.suffix);
        body.freeze()
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        let commas = self.messages.len().saturating_sub(1);
        let messages: usize = self.messages.iter().map(Bytes::len).sum();
        self.frame.prefix.len() + messages + commas + self.frame.suffix.len()
    }
}

/// What is known of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelInfo {
    /// The provider route.
    pub provider: String,
    /// The model's id under it.
    pub id: String,
    /// For people. Not empty.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// `text`, `image`; `None` if unknown.
    pub input_modalities: Option<Vec<String>>,
    /// The context window in tokens; positive.
    pub context_window: Option<u64>,
    /// Filled in when a call names no limit; positive.
    pub default_max_tokens: Option<u64>,
    /// The efforts that the model takes; `None` if it takes none.
    pub reasoning: Option<Reasoning>,
    /// How the route takes a changed system prompt.
    pub system_prompt_update: Option<SystemPromptUpdate>,
    /// How the route takes a changed tool set.
    pub tool_update: Option<ToolUpdate>,
}

/// The reasoning efforts of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// The effort ids, unique and not empty.
    pub efforts: Vec<String>,
    /// Filled in when a call names none; one of `efforts`.
    pub default_effort: Option<String>,
}
