//! Small values: a file each, which is replaced whole.

use bytes::Bytes;
use playhouse_plugin_api::store::StoreError;
use serde::{Deserialize, Serialize};

use super::layout::draft;
use super::line::{self, Kind, Stand};
use super::shelf::Shelf;
use crate::journal::JournalError;

/// The first line of a value's file; the value's bytes follow.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ValueLine {
    r#type: String,
    key: String,
    bytes: u64,
    value_crc: String,
}

fn crc(value: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(value))
}

fn encode(key: &str, value: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let line = ValueLine {
        r#type: "value".to_owned(),
        key: key.to_owned(),
        bytes: value.len() as u64,
        value_crc: crc(value),
    };
    let mut out = Vec::with_capacity(value.len() + 200);
    line::encode_object(&mut out, &line, Kind::Value, Stand::default())?;
    out.extend_from_slice(value);
    Ok(out)
}

/// The value in a file's bytes. The error says what is wrong where.
pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Bytes, String> {
    let bad = || "line 1 byte 0: the checksum does not hold".to_owned();
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(bad)?;
    let found = line::decode_object(&bytes[..end], Kind::Value, Stand::default());
    let (json, _) = found.ok_or_else(bad)?;
    let line: ValueLine = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
    if line.key != key {
        return Err(format!("line 1 byte 0: it is the value of `{}`, not of `{key}`", line.key));
    }
    let value = &bytes[end + 1..];
    if value.len() as u64 != line.bytes {
        return Err(format!("byte {}: {} bytes instead of {}", end + 1, value.len(), line.bytes));
    }
    if crc(value) != line.value_crc {
        return Err(format!("byte {}: the value's checksum does not hold", end + 1));
    }
    Ok(Bytes::copy_from_slice(value))
}

/// The key of a value's file.
pub(super) fn key_of(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let (json, _) = line::decode_object(line, Kind::Value, Stand::default())?;
    serde_json::from_slice::<ValueLine>(&json).ok().map(|line| line.key)
}

/// Replaces a value, durably.
pub(super) fn put(shelf: &Shelf, key: &str, value: &[u8]) -> Result<(), StoreError> {
    let path = shelf.layout().value(key);
    let bytes = encode(key, value).map_err(|error| StoreError::Argument(error.to_string()))?;
    shelf.draft(&path, &bytes)?;
    let renamed = shelf.disk().rename(&draft(&path), &path);
    renamed.map_err(|error| shelf.fail(JournalError::io("write", &path, error)))?;
    shelf.sync_dir(&shelf.layout().values())
}

/// Removes a value, durably. The directory is synced even if there is none: an earlier try may have
/// failed at that.
pub(super) fn remove(shelf: &Shelf, key: &str) -> Result<(), StoreError> {
    shelf.remove(&shelf.layout().value(key))?;
    shelf.sync_dir(&shelf.layout().values())
}
