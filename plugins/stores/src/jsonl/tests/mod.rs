//! Tests of what only the JSONL store promises: its files, its disk, its damage.

mod beside;
mod damage;
mod disk;
mod golden;
mod power_cut;
mod scenario;

use std::collections::BTreeMap;

use playhouse_plugin_api::store::{EventBatch, StoredTail};

use super::reader::{verify_on, view};
use super::*;
use crate::contract::{batch, header, texts};
use crate::journal::tests::model_disk::{Cut, Dice, Fault, ModelDisk, Op, seed};

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A store on a disk in memory, that syncs only when it is asked to.
async fn on_model(disk: &ModelDisk) -> JsonlStore {
    let config = JsonlConfig { window: Duration::from_secs(1_000_000) };
    JsonlStore::open_on(Arc::new(disk.clone()), "/store".into(), config).await.unwrap()
}

/// What a reader finds.
fn shelf(disk: &ModelDisk) -> Shelf {
    view(Arc::new(disk.clone()), Path::new("/store")).unwrap().0
}

/// The disk as another process finds it when the one that wrote it is killed.
fn killed(disk: &ModelDisk) -> ModelDisk {
    ModelDisk::from_files(&disk.files())
}

fn log(id: &str) -> PathBuf {
    format!("/store/sessions/{id}.jsonl").into()
}

/// The offsets of a file's lines, and its end.
fn line_starts(bytes: &[u8]) -> Vec<usize> {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

fn event(kind: &str, seq: u64) -> EventBatch {
    let text = format!("{{\"type\":\"{kind}\",\"seq\":{seq},\"time\":1,\"data\":{{}}}}");
    EventBatch { first_seq: seq, events: vec![Bytes::from(text)] }
}
