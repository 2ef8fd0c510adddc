//! The bytes are frozen: what `docs/jsonl.md` describes is what golden files hold.

use super::*;

const FORMAT: &str = include_str!("../../../tests/golden/jsonl/format");
const LOG: &str = include_str!("../../../tests/golden/jsonl/s~2f1.jsonl");
const TAIL: &str = include_str!("../../../tests/golden/jsonl/s~2f1.tail.jsonl");
const VALUE: &str = include_str!("../../../tests/golden/jsonl/k.value");

fn golden() -> Files {
    [
        ("/store/format", FORMAT),
        ("/store/sessions/s~2f1.jsonl", LOG),
        ("/store/sessions/s~2f1.tail.jsonl", TAIL),
        ("/store/values/k.value", VALUE),
    ]
    .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()))
    .into()
}

fn golden_header() -> Arc<SessionHeader> {
    let mut header = (*header("s/1")).clone();
    header.is_seeded = true;
    header.parent_session = Some("s".into());
    header.delegation_depth = Some(1);
    Arc::new(header)
}

fn events() -> Vec<Bytes> {
    let turn = |kind, seq| {
        let text =
            format!(r#"{{"type":"turn/{kind}","seq":{seq},"time":{seq},"data":{{"turn":1}}}}"#);
        Bytes::from(text)
    };
    let odd = [
        Bytes::from_static(br#"{"type":"x","seq":2}"#),
        Bytes::from_static(br#"{ "seq" : 3, "type" : "y" }"#),
    ];
    [vec![turn("start", 0), turn("end", 1)], odd.into(), vec![turn("start", 4)]].concat()
}

const PARTS: [&[u8]; 2] = [b"text \"of\" a part", b"\x00\xff"];

#[tokio::test]
async fn the_writer_writes_the_golden_bytes() {
    let disk = ModelDisk::default();
    let store = on_model(&disk).await;
    let writer = store.create(&golden_header(), 2).await.unwrap();
    let append = |first_seq: u64, count: usize| {
        let events = events().into_iter().skip(first_seq as usize).take(count).collect();
        writer.append(EventBatch { first_seq, events })
    };
    append(0, 2).await.unwrap();
    append(2, 2).await.unwrap();
    writer.flush().await.unwrap();
    append(4, 1).await.unwrap();
    for part in PARTS {
        writer.tail(5, Bytes::from_static(part)).await.unwrap();
    }
    store.put_value("k", Bytes::from_static(b"value")).await.unwrap();
    store.close().await.unwrap();
    let files = disk.files();
    for (path, bytes) in &files {
        let text = String::from_utf8_lossy(bytes);
        assert!(
            golden().get(path) == Some(bytes),
            "the format has changed; if that is meant, raise its version: {}\n{text}",
            path.display()
        );
    }
    assert_eq!(files.len(), golden().len());
}

#[tokio::test]
async fn the_golden_bytes_read_as_what_was_written() {
    let disk = ModelDisk::from_files(&golden());
    let shelf = shelf(&disk);
    let session = shelf.read(&"s/1".into()).unwrap();
    assert_eq!(session.header, golden_header());
    assert_eq!(session.inherited_event_count, 2);
    assert_eq!(session.events, events());
    let parts = PARTS.map(Bytes::from_static).into();
    assert_eq!(session.tail, Some(StoredTail { attempt: 5, parts }));
    assert_eq!(shelf.value("k").unwrap().unwrap(), "value");
    assert_eq!(shelf.ids().unwrap(), [SessionId::from("s/1")]);
    // Every line is JSON, for any tool.
    for line in [LOG, TAIL].concat().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
