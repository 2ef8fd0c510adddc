use super::*;
use crate::journal::{Entry, Kind};

const CACHE: u64 = 1 << 20;

fn covered(clean: bool) -> Covered {
    Covered { store: [7; 16], next_batch: 5, next_segment: 2, last_session: 2, clean }
}

fn entry(kind: Kind, session: u64, first_seq: u64, offset: u64, key: &str) -> Entry {
    Entry {
        kind,
        session,
        first_seq,
        count: match kind {
            Kind::Events => 3,
            Kind::Tail => u32::try_from(offset).unwrap(),
            _ => 0,
        },
        offset,
        length: 100,
        key: key.as_bytes().to_vec(),
    }
}

fn sample() -> Arc<Map> {
    let mut map = Map::default();
    for at in [
        entry(Kind::Session, 1, 0, 50, "b"),
        entry(Kind::Session, 2, 0, 150, "a"),
        entry(Kind::Events, 1, 0, 250, ""),
        entry(Kind::Events, 1, 3, 350, ""),
        entry(Kind::Tail, 2, 6, 440, ""),
        entry(Kind::Tail, 2, 7, 450, ""),
        entry(Kind::Tail, 2, 7, 460, ""),
        entry(Kind::Kv, 0, 0, 550, "key"),
    ] {
        map.apply(1, &at);
    }
    Arc::new(map)
}

#[test]
fn what_was_added_is_found_after_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let map = sample();
    Index::open(dir.path(), CACHE).unwrap().add(&map, &covered(true)).unwrap();
    let index = Index::open(dir.path(), CACHE).unwrap();
    assert_eq!(index.covered().unwrap(), Some(covered(true)));
    assert_eq!(index.find("b").unwrap(), Some(1));
    assert_eq!(index.session(1).unwrap().as_ref(), map.sessions.get(&1));
    assert_eq!(index.session(2).unwrap().as_ref(), map.sessions.get(&2));
    let head = index.head(1).unwrap();
    assert_eq!(head, map.sessions.get(&1).map(SessionMap::without_blocks));
    assert_eq!(map.sessions[&2].tail.as_ref().unwrap().parts.len(), 2);
    // Another attempt replaces the rows of the one before.
    let mut recent = Map::default();
    recent.sessions.insert(2, map.sessions[&2].without_blocks());
    recent.apply(2, &entry(Kind::Tail, 2, 8, 470, ""));
    let recent = Arc::new(recent);
    index.add(&recent, &covered(true)).unwrap();
    assert_eq!(index.session(2).unwrap().as_ref(), recent.sessions.get(&2));
    index.reconcile(&map, &covered(true), |_, _| ()).unwrap();
    assert_eq!(index.value(b"key").unwrap(), map.kv.get(&b"key"[..]).copied());
    let ids = |page: Vec<Listed>| page.into_iter().map(|l| l.session.id).collect::<Vec<_>>();
    assert_eq!(ids(index.page(None, 10).unwrap()), ["a", "b"]);
    assert_eq!(ids(index.page(Some("a"), 10).unwrap()), ["b"]);
    assert_eq!(index.reconcile(&map, &covered(true), |_, _| ()).unwrap(), 0);
}

#[test]
fn a_differing_index_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), CACHE).unwrap();
    let mut other = Map::clone(&sample());
    other.apply(9, &entry(Kind::Events, 2, 0, 1, ""));
    other.apply(9, &entry(Kind::Session, 3, 0, 1, "gone"));
    index.add(&Arc::new(other), &covered(false)).unwrap();
    assert!(index.reconcile(&sample(), &covered(false), |_, _| ()).unwrap() > 0);
    assert_eq!(index.reconcile(&sample(), &covered(false), |_, _| ()).unwrap(), 0);
    assert_eq!(index.find("gone").unwrap(), None);
}

#[test]
fn a_deleted_session_leaves_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), CACHE).unwrap();
    index.add(&sample(), &covered(false)).unwrap();
    let mut recent = Map::default();
    recent.apply(2, &entry(Kind::Tombstone, 1, 0, 50, ""));
    index.add(&Arc::new(recent), &covered(false)).unwrap();
    assert_eq!(index.find("b").unwrap(), None);
    assert_eq!(index.session(1).unwrap(), None);
}

#[test]
fn a_damaged_index_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    Index::open(dir.path(), CACHE).unwrap().add(&sample(), &covered(true)).unwrap();
    let conf = dir.path().join("index/conf");
    let mut bytes = std::fs::read(&conf).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&conf, bytes).unwrap();
    assert!(Index::open(dir.path(), CACHE).is_err());
    let (index, aside) = Index::start_over(dir.path(), CACHE).unwrap();
    assert!(aside.join("conf").exists());
    assert_eq!(index.covered().unwrap(), None);
}

#[test]
fn a_long_session_goes_beyond_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), CACHE).unwrap();
    let mut whole = Map::default();
    for fold in 0..5 {
        // As the ledger counts on from what the index knows.
        let head = index.head(1).unwrap();
        let mut recent = Map::default();
        recent.sessions.extend(head.map(|head| (1, head)));
        let mut apply = |at: &Entry| {
            whole.apply(fold, at);
            recent.apply(fold, at);
        };
        if fold == 0 {
            apply(&entry(Kind::Session, 1, 0, 0, "long"));
        }
        for at in fold * 20..fold * 20 + 20 {
            apply(&entry(Kind::Events, 1, at * 3, at * 1000, ""));
            apply(&entry(Kind::Tail, 1, 9, at * 1000 + 500, ""));
        }
        index.add(&Arc::new(recent), &covered(false)).unwrap();
        assert_eq!(index.session(1).unwrap().as_ref(), whole.sessions.get(&1));
    }
    let session = &whole.sessions[&1];
    assert_eq!(session.blocks.len(), 100);
    assert_eq!(session.tail.as_ref().unwrap().parts.len(), 100);
    assert_eq!(index.head(1).unwrap(), Some(session.without_blocks()));
    // Added in parts, it is what a map of the whole asks for.
    assert_eq!(index.reconcile(&whole, &covered(false), |_, _| ()).unwrap(), 0);
    for segment in [0, 4] {
        let blocks = index.blocks_in(BTreeSet::from([segment])).unwrap();
        let standing = session.blocks.iter().filter(|block| block.place.segment == segment);
        assert_eq!(blocks, standing.map(|block| (1, *block)).collect::<Vec<_>>());
    }
    // Another attempt takes the rows of the one before with it.
    let mut recent = Map::default();
    recent.sessions.insert(1, index.head(1).unwrap().unwrap());
    let next = entry(Kind::Tail, 1, 10, 200_000, "");
    whole.apply(6, &next);
    recent.apply(6, &next);
    index.add(&Arc::new(recent), &covered(false)).unwrap();
    assert_eq!(index.reconcile(&whole, &covered(false), |_, _| ()).unwrap(), 0);
}

#[test]
fn an_index_of_another_layout_goes_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), CACHE).unwrap();
    let old = to_json(&covered(true));
    index.thread.call(move |tree| tree.insert([0], old)).unwrap();
    assert_eq!(index.covered().unwrap(), None);
    // Its rows go when it is brought up to the journal.
    assert_eq!(index.reconcile(&sample(), &covered(true), |_, _| ()).unwrap(), 6);
    assert_eq!(index.reconcile(&sample(), &covered(true), |_, _| ()).unwrap(), 0);
}
