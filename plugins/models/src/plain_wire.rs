//! The request body of adapters that have no wire: the vocabulary's own JSON.

use bytes::Bytes;
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::llm::{Frame, FrameInput};
use serde::Serialize;

pub(crate) fn encode(value: &impl Serialize) -> Result<Bytes, Failure> {
    let text = serde_json::to_vec(value).map_err(|fault| {
        Failure::new("UNSUPPORTED_CONTENT", format!("message does not encode as JSON: {fault}"))
    })?;
    Ok(text.into())
}

pub(crate) fn frame(request: &FrameInput<'_>) -> Result<Frame, Failure> {
    let (config, tools) = (encode(request.config)?, encode(request.tools)?);
    Ok(Frame {
        prefix: [b"{\"config\":", &config[..], b",\"messages\":["].concat().into(),
        suffix: [b"],\"tools\":", &tools[..], b"}"].concat().into(),
    })
}
