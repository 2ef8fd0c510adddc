//! Sessions as JSON lines.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use bytes::Bytes;
use playhouse_messages::{
    attachment::{Attachment, AttachmentId},
    id::SessionId,
};
use playhouse_plugin_api::{
    attachment::{AttachmentError, AttachmentStore},
    store::{SessionStat, StoreReader},
};
use serde_json::Value;

use crate::{
    error::TransferError,
    record::{Announced, Record, header_line},
};

/// What was written of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The session.
    pub id: SessionId,
    /// How many events.
    pub events: u64,
    /// How many images.
    pub attachments: u64,
    /// Images that the session shows and that are not there any more, or damaged.
    pub missing: Vec<AttachmentId>,
}

/// Writes a session: its header, its events as they are stored, the tail that its last attempt left,
/// and its images from `attachments`, if that is given.
///
/// Works beside a writer, and then holds what was written when the read began. One session, and one of
/// its images at a time, are in memory. A cancelled export leaves a part of the session in `out`.
///
/// # Errors
///
/// If the session cannot be read whole, the store of images fails, or `out` does. A single image that is
/// gone or damaged is no error, see [`Exported::missing`].
pub async fn export(
    reader: &dyn StoreReader,
    attachments: Option<&dyn AttachmentStore>,
    id: &SessionId,
    out: &mut (dyn Write + Send),
) -> Result<Exported, TransferError> {
    let stored = reader.read(id).await?;
    let mut exported = Exported { id: id.clone(), events: 0, attachments: 0, missing: Vec::new() };
    let mut images = Vec::new();
    if let Some(attachments) = attachments {
        for image in shown(&stored.events) {
            // Looked for twice rather than kept: all images of a session may be more than memory holds.
            match load(attachments, &image).await? {
                Some(_) => images.push(image),
                None => exported.missing.push(image),
            }
        }
    }
    let parts = stored.tail.as_ref().map_or(0, |tail| tail.parts.len());
    let announced = Announced {
        inherited: stored.inherited_event_count,
        events: Some(stored.events.len() as u64),
        tail_parts: Some(parts as u64),
        attachments: Some(images.len() as u64),
    };
    let mut line = |bytes: &[u8]| {
        out.write_all(bytes)?;
        out.write_all(b"\n")
    };
    line(header_line(&stored.header, announced).map_err(std::io::Error::from)?.as_bytes())?;
    for event in &stored.events {
        line(event)?;
    }
    if let Some(tail) = &stored.tail {
        line(&serde_json::to_vec(&Record::of_tail(tail)).map_err(std::io::Error::from)?)?;
    }
    if let Some(attachments) = attachments {
        for image in images {
            let Some(bytes) = load(attachments, &image).await? else {
                let place = attachments.describe();
                let cause = format!("{image} went away during the export");
                return Err(AttachmentError::Store { place, cause }.into());
            };
            let record = Record::of_image(image, &bytes);
            line(&serde_json::to_vec(&record).map_err(std::io::Error::from)?)?;
            exported.attachments += 1;
        }
    }
    exported.events = stored.events.len() as u64;
    Ok(exported)
}

async fn load(
    store: &dyn AttachmentStore,
    id: &AttachmentId,
) -> Result<Option<Bytes>, TransferError> {
    match store.get(id).await {
        Err(AttachmentError::Corrupt { .. }) => Ok(None),
        found => Ok(found?),
    }
}

/// The images of a session's messages, each once, in the order of their first showing.
fn shown(events: &[Bytes]) -> Vec<AttachmentId> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let word = b"\"attachmentId\"";
    for event in events {
        // Most events show none, and need no reading.
        if !event.windows(word.len()).any(|window| window == word) {
            continue;
        }
        let Ok(value) = serde_json::from_slice::<Value>(event) else { continue };
        let mut stack = vec![&value];
        while let Some(value) = stack.pop() {
            if let Some(Attachment { attachment_id, .. }) = Attachment::read(value) {
                if seen.insert(attachment_id.clone()) {
                    found.push(attachment_id);
                }
                continue;
            }
            match value {
                Value::Array(items) => stack.extend(items.iter().rev()),
                Value::Object(fields) => stack.extend(fields.values().rev()),
                _ => {}
            }
        }
    }
    found
}

/// These sessions, each once and followed by all that were forked or delegated from it, older ones
/// first.
pub fn with_descendants(stats: &[SessionStat], roots: &[SessionId]) -> Vec<SessionId> {
    let mut below: BTreeMap<&SessionId, Vec<&SessionStat>> = BTreeMap::new();
    for stat in stats {
        if let Some(parent) = &stat.header.parent_session {
            below.entry(parent).or_default().push(stat);
        }
    }
    for children in below.values_mut() {
        children.sort_by_key(|stat| std::cmp::Reverse((stat.header.created_at, &stat.header.id)));
    }
    let mut seen = BTreeSet::new();
    let mut tree = Vec::new();
    let mut stack: Vec<&SessionId> = roots.iter().rev().collect();
    // Records that form a cycle end, since each is taken once.
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            tree.push(id.clone());
            stack.extend(below.get(id).into_iter().flatten().map(|stat| &stat.header.id));
        }
    }
    tree
}
