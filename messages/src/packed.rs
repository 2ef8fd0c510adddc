//! The compact, lossless form of a stream that settlements embed.
//!
//! Runs of deltas of one block become one record; everything else stays a raw chunk. Expansion
//! reproduces every chunk boundary and arrival time.

use serde::{Deserialize, Serialize};

use crate::{chunk::StreamChunk, id::CallId};

/// A chunk with its arrival time in epoch milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedChunk {
    /// Epoch milliseconds; the same on live frames and in the durable record.
    pub time: i64,
    /// The chunk.
    pub chunk: StreamChunk,
}

/// One record of a packed stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum StreamRecord {
    /// Text deltas of one block.
    TextChunks {
        /// When the first arrived.
        time0: i64,
        /// Which block.
        index: u32,
        /// The gaps between members; one fewer than members.
        dt: Vec<i64>,
        /// The members.
        texts: Vec<String>,
    },
    /// Reasoning deltas of one block.
    ReasoningChunks {
        /// When the first arrived.
        time0: i64,
        /// Which block.
        index: u32,
        /// The gaps between members; one fewer than members.
        dt: Vec<i64>,
        /// The members.
        texts: Vec<String>,
    },
    /// Argument deltas of one tool call.
    ToolCallChunks {
        /// When the first arrived.
        time0: i64,
        /// Which block.
        index: u32,
        /// The gaps between members; one fewer than members.
        dt: Vec<i64>,
        /// The call.
        id: CallId,
        /// The tool's name, if every member carries it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The members.
        args: Vec<String>,
    },
    /// Any other chunk, as it is.
    Chunk {
        /// When it arrived.
        time: i64,
        /// The chunk.
        chunk: StreamChunk,
    },
}

/// Packs a stream as its chunks arrive.
#[derive(Debug, Clone, Default)]
pub struct StreamPacker {
    records: Vec<StreamRecord>,
    last_time: i64,
}

impl StreamPacker {
    /// An empty packer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one chunk.
    pub fn push(&mut self, timed: TimedChunk) {
        let TimedChunk { time, chunk } = timed;
        let gap = time.wrapping_sub(self.last_time);
        self.last_time = time;
        match (self.records.last_mut(), &chunk) {
            (
                Some(StreamRecord::TextChunks { index, dt, texts, .. }),
                StreamChunk::TextDelta { index: new, text },
            )
            | (
                Some(StreamRecord::ReasoningChunks { index, dt, texts, .. }),
                StreamChunk::ReasoningDelta { index: new, text },
            ) if index == new => {
                dt.push(gap);
                texts.push(text.clone());
            }
            (
                Some(StreamRecord::ToolCallChunks { index, dt, id, name, args, .. }),
                StreamChunk::ToolCallDelta {
                    index: new,
                    id: new_id,
                    name: new_name,
                    arguments_delta,
                },
            ) if index == new && id == new_id && name == new_name => {
                dt.push(gap);
                args.push(arguments_delta.clone());
            }
            _ => self.records.push(match chunk {
                StreamChunk::TextDelta { index, text } => {
                    StreamRecord::TextChunks { time0: time, index, dt: vec![], texts: vec![text] }
                }
                StreamChunk::ReasoningDelta { index, text } => StreamRecord::ReasoningChunks {
                    time0: time,
                    index,
                    dt: vec![],
                    texts: vec![text],
                },
                StreamChunk::ToolCallDelta { index, id, name, arguments_delta }
                    if !id.as_str().is_empty() && name.as_deref() != Some("") =>
                {
                    StreamRecord::ToolCallChunks {
                        time0: time,
                        index,
                        dt: vec![],
                        id,
                        name,
                        args: vec![arguments_delta],
                    }
                }
                chunk => StreamRecord::Chunk { time, chunk },
            }),
        }
    }

    /// The records so far.
    pub fn records(&self) -> &[StreamRecord] {
        &self.records
    }

    /// The packed stream.
    pub fn finish(self) -> Vec<StreamRecord> {
        self.records
    }
}

/// Packs a whole stream.
pub fn pack(chunks: impl IntoIterator<Item = TimedChunk>) -> Vec<StreamRecord> {
    let mut packer = StreamPacker::new();
    for chunk in chunks {
        packer.push(chunk);
    }
    packer.finish()
}

/// The exact chunks that were packed, with their times.
pub fn expand(records: &[StreamRecord]) -> Vec<TimedChunk> {
    fn members<'a>(
        time0: i64,
        dt: &'a [i64],
        texts: &'a [String],
    ) -> impl Iterator<Item = (i64, String)> + 'a {
        let gaps = std::iter::once(0).chain(dt.iter().copied());
        let times = gaps.scan(time0, |time, gap| {
            *time = time.wrapping_add(gap);
            Some(*time)
        });
        times.zip(texts.iter().cloned())
    }
    let mut chunks = Vec::new();
    for record in records {
        match record {
            StreamRecord::TextChunks { time0, index, dt, texts } => {
                chunks.extend(members(*time0, dt, texts).map(|(time, text)| TimedChunk {
                    time,
                    chunk: StreamChunk::TextDelta { index: *index, text },
                }));
            }
            StreamRecord::ReasoningChunks { time0, index, dt, texts } => {
                chunks.extend(members(*time0, dt, texts).map(|(time, text)| TimedChunk {
                    time,
                    chunk: StreamChunk::ReasoningDelta { index: *index, text },
                }));
            }
            StreamRecord::ToolCallChunks { time0, index, dt, id, name, args } => {
                chunks.extend(members(*time0, dt, args).map(|(time, arguments_delta)| {
                    TimedChunk {
                        time,
                        chunk: StreamChunk::ToolCallDelta {
                            index: *index,
                            id: id.clone(),
                            name: name.clone(),
                            arguments_delta,
                        },
                    }
                }));
            }
            StreamRecord::Chunk { time, chunk } => {
                chunks.push(TimedChunk { time: *time, chunk: chunk.clone() });
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::FinishReason;

    fn text(time: i64, index: u32, text: &str) -> TimedChunk {
        TimedChunk { time, chunk: StreamChunk::TextDelta { index, text: text.into() } }
    }

    fn call(time: i64, id: &str, name: Option<&str>, args: &str) -> TimedChunk {
        TimedChunk {
            time,
            chunk: StreamChunk::ToolCallDelta {
                index: 1,
                id: id.into(),
                name: name.map(Into::into),
                arguments_delta: args.into(),
            },
        }
    }

    #[test]
    fn expansion_reproduces_every_boundary_and_time() {
        let chunks = vec![
            text(5, 0, "He"),
            text(8, 0, "l"),
            text(7, 0, "lo"), // time may run backwards
            text(9, 2, "other block"),
            call(9, "c", Some("read"), "{"),
            call(9, "c", Some("read"), "}"),
            call(9, "c", None, ""), // another presence of name starts a record
            call(9, "", None, "x"), // no id: raw
            call(9, "c", Some(""), "x"), // empty name: raw
            TimedChunk {
                time: 11,
                chunk: StreamChunk::Finish { reason: FinishReason::Stop, replay_state: None },
            },
        ];
        let records = pack(chunks.clone());
        assert_eq!(records.len(), 7);
        assert_eq!(expand(&records), chunks);
        let json = serde_json::to_string(&records).unwrap();
        assert!(json.starts_with(
            r#"[{"type":"text-chunks","time0":5,"index":0,"dt":[3,-1],"texts":["He","l","lo"]}"#
        ));
        assert_eq!(serde_json::from_str::<Vec<StreamRecord>>(&json).unwrap(), records);
    }
}
