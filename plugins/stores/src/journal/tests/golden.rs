//! The bytes are frozen: what `docs/journal.md` describes is what golden files hold.

use super::model_disk::ModelDisk;
use super::*;

/// A batch of every kind of record, a second batch whose trail tells of the first, and a footer.
fn records() -> [Vec<Record>; 2] {
    let first = vec![
        Record::Session {
            session: 1,
            id: "s-1".to_owned(),
            inherited: 0,
            header: Buffer::from_static(br#"{"version":1,"id":"s-1","createdAt":1}"#),
        },
        Record::Events {
            session: 1,
            first_seq: 0,
            events: vec![
                Buffer::from_static(br#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#),
                Buffer::from_static(br#"{"type":"turn/end","seq":1,"time":2,"data":{"turn":1}}"#),
            ],
        },
        Record::Tail {
            session: 1,
            attempt: 5,
            serial: 1,
            part: Buffer::from_static(b"\x00\x01tail"),
        },
        Record::Kv { key: Buffer::from_static(b"k"), value: Some(Buffer::from_static(b"value")) },
    ];
    let second = vec![
        Record::Kv { key: Buffer::from_static(b"k"), value: None },
        Record::Tombstone { session: 1 },
    ];
    [first, second]
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(32) {
        for byte in line {
            out.push_str(&format!("{byte:02x}"));
        }
        out.push('\n');
    }
    out
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

const SEALED: &str = include_str!("../../../tests/golden/sealed_segment.hex");
const FORMAT: &str = "playhouse-store 1 30313233343536373839616263646566 545ec8b9\n";

#[test]
fn the_writer_writes_the_golden_bytes() {
    let disk = ModelDisk::default();
    let (mut writer, _) = open(&disk, small(1 << 20));
    for batch in records() {
        writer.write(&batch, Urgency::Ordinary).unwrap();
    }
    writer.seal().unwrap();
    let files = disk.files();
    let written = hex(&files[&segment(1)]);
    assert!(
        written == SEALED,
        "the format has changed; if that is meant, raise its version:\n{written}"
    );
    assert_eq!(files[&dir().join("format")], FORMAT.as_bytes());
}

#[test]
fn the_golden_bytes_read_as_what_was_written() {
    let files = [(segment(1), unhex(SEALED)), (dir().join("format"), FORMAT.as_bytes().to_vec())];
    let disk = ModelDisk::from_files(&files.into());
    let format = StoreFormat { store: STORE, damaged: false };
    assert_eq!(read_format(&disk, &dir()).unwrap(), format);
    let bytes = Buffer::from(unhex(SEALED));
    let checksum = Checksum::of_store(&STORE);
    let scan = crate::journal::scan::scan_segment(&bytes, checksum);
    assert!(scan.bad.is_empty() && !scan.is_torn());
    let [first, second] = records();
    for (batch, expected) in scan.batches.iter().zip([first, second]) {
        let read = crate::journal::scan::records_at(&bytes, batch.offset, checksum).unwrap();
        let read: Vec<Record> = read.into_iter().map(|(_, record)| record).collect();
        assert_eq!(read, expected);
    }
    let listed: Vec<Entry> = scan.batches.iter().flat_map(|b| b.entries.clone()).collect();
    assert_eq!(scan.footer.unwrap().entries, listed);
    for depth in [Depth::Footers, Depth::Full] {
        let found = read_all(&disk, depth);
        assert_eq!(found.damages, []);
        assert!(found.map.sessions.is_empty() && found.map.deleted.contains(&1));
        assert_eq!((found.next_batch, found.next_segment), (3, 2));
    }
}
