//! The order that an adapter's chunks must keep, checked while developing.

use futures::{StreamExt, stream::BoxStream};
use playhouse_messages::chunk::{Failure, FinishReason, StreamChunk};

/// A broken ordering rule: a bug of the adapter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

impl Violation {
    /// The code of the failure that stands for a violation.
    pub const CODE: &'static str = "PROTOCOL_VIOLATION";
}

/// Follows one stream.
///
/// Blocks open before their deltas and end before the finish (unless that is `error` or `aborted`),
/// usage comes once at most and before the finish, and the finish comes once and last.
#[derive(Debug, Default)]
pub struct ProtocolCheck {
    open: Vec<(u32, String)>,
    usage: bool,
    finished: bool,
}

impl ProtocolCheck {
    /// Checks the next chunk.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub fn push(&mut self, chunk: &StreamChunk) -> Result<(), Violation> {
        let fail = |text: String| Err(Violation(text));
        if self.finished {
            return fail("a chunk after finish".into());
        }
        match chunk {
            StreamChunk::BlockStart { index, block_type } => {
                if self.kind_of(*index).is_some() {
                    return fail(format!("repeated block-start index {index}"));
                }
                self.open.push((*index, block_type.clone()));
            }
            StreamChunk::TextDelta { index, .. } => self.delta(*index, "text")?,
            StreamChunk::ReasoningDelta { index, .. } => self.delta(*index, "reasoning")?,
            StreamChunk::ToolCallDelta { index, .. } => self.delta(*index, "tool-call")?,
            StreamChunk::BlockEnd { index, block } => match self.kind_of(*index) {
                None => return fail(format!("block-end without an open block at index {index}")),
                Some(kind) if kind != block.kind() => {
                    return fail(format!(
                        "block-end of type {} for the {kind} block at index {index}",
                        block.kind()
                    ));
                }
                Some(_) => self.open.retain(|(open, _)| open != index),
            },
            StreamChunk::Usage { .. } => {
                if std::mem::replace(&mut self.usage, true) {
                    return fail("a second usage chunk".into());
                }
            }
            StreamChunk::Finish { reason, .. } => {
                self.finished = true;
                let failed =
                    matches!(reason, FinishReason::Error { .. } | FinishReason::Aborted { .. });
                if let (false, Some((index, _))) = (failed, self.open.first()) {
                    return fail(format!("finish while the block at index {index} is open"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    ///
    /// There was no finish.
    pub fn end(&self) -> Result<(), Violation> {
        if self.finished {
            Ok(())
        } else {
            Err(Violation("the stream ended without finish".into()))
        }
    }

    /// Checks a whole answer.
    ///
    /// # Errors
    ///
    /// The first rule that it breaks.
    pub fn check_all(chunks: &[StreamChunk]) -> Result<(), Violation> {
        let mut check = Self::default();
        chunks.iter().try_for_each(|chunk| check.push(chunk))?;
        check.end()
    }

    fn kind_of(&self, index: u32) -> Option<&str> {
        self.open.iter().find(|(open, _)| *open == index).map(|(_, kind)| kind.as_str())
    }

    fn delta(&self, index: u32, kind: &str) -> Result<(), Violation> {
        match self.kind_of(index) {
            Some(open) if open == kind => Ok(()),
            Some(open) => {
                Err(Violation(format!("{kind} delta for the {open} block at index {index}")))
            }
            None => Err(Violation(format!("{kind} delta without an open block at index {index}"))),
        }
    }
}

/// Passes a stream on until it breaks a rule; then it fails with [`Violation::CODE`] and ends.
/// Failures of the stream pass unchanged, and a missing finish is left to
/// [`normalise`](super::normalise()), which reports it in every build alike.
pub fn checked(
    stream: BoxStream<'static, Result<StreamChunk, Failure>>,
) -> BoxStream<'static, Result<StreamChunk, Failure>> {
    let mut check = ProtocolCheck::default();
    let mut broken = false;
    stream
        .map(move |item| {
            let chunk = item?;
            match check.push(&chunk) {
                Ok(()) => Ok(chunk),
                Err(violation) => {
                    tracing::error!(%violation, "model adapter broke the stream protocol");
                    Err(Failure::new(Violation::CODE, violation.to_string()))
                }
            }
        })
        .take_while(move |item| {
            let go = !broken;
            broken |= item.is_err();
            std::future::ready(go)
        })
        .boxed()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod scenario {
    use playhouse_messages::content::ContentBlock;

    use super::*;

    fn start(index: u32, kind: &str) -> StreamChunk {
        StreamChunk::BlockStart { index, block_type: kind.into() }
    }

    fn text(index: u32) -> StreamChunk {
        StreamChunk::TextDelta { index, text: "x".into() }
    }

    fn end(index: u32) -> StreamChunk {
        StreamChunk::BlockEnd { index, block: ContentBlock::text("x") }
    }

    fn finish(reason: FinishReason) -> StreamChunk {
        StreamChunk::Finish { reason, replay_state: None }
    }

    fn usage() -> StreamChunk {
        StreamChunk::Usage { usage: Default::default() }
    }

    fn fault(chunks: &[StreamChunk]) -> String {
        ProtocolCheck::check_all(chunks).unwrap_err().to_string()
    }

    #[test]
    fn interleaved_blocks_may_end_in_any_order() {
        let reasoning = StreamChunk::ReasoningDelta { index: 1, text: "y".into() };
        let close = StreamChunk::BlockEnd { index: 1, block: ContentBlock::Reasoning("y".into()) };
        let chunks = [
            start(0, "text"),
            start(1, "reasoning"),
            reasoning,
            text(0),
            close,
            end(0),
            usage(),
            finish(FinishReason::Stop),
        ];
        assert_eq!(ProtocolCheck::check_all(&chunks), Ok(()));
    }

    #[test]
    fn llm_2_llm_4_llm_10_llm_11_llm_12_each_broken_rule_is_named() {
        let stop = || finish(FinishReason::Stop);
        assert_eq!(fault(&[start(3, "text"), start(3, "text")]), "repeated block-start index 3");
        assert!(fault(&[text(0)]).contains("without an open block"));
        assert!(fault(&[start(0, "reasoning"), text(0)]).contains("text delta for the reasoning"));
        assert!(fault(&[start(0, "reasoning"), end(0)]).contains("block-end of type text"));
        assert!(fault(&[start(0, "text"), end(0), text(0)]).contains("without an open block"));
        assert!(fault(&[usage(), usage(), stop()]).contains("second usage"));
        assert!(fault(&[stop(), usage()]).contains("after finish"));
        assert!(fault(&[stop(), stop()]).contains("after finish"));
        assert!(fault(&[start(0, "text"), stop()]).contains("is open"));
        assert!(fault(&[]).contains("without finish"));
        let failed = finish(FinishReason::Error { failure: Failure::unknown("x") });
        assert_eq!(ProtocolCheck::check_all(&[start(0, "text"), failed]), Ok(()));
    }
}
