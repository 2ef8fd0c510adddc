//! A part of a session costs what it holds, whatever lies before and behind it.

use super::*;

#[tokio::test]
async fn a_part_of_a_long_session_is_read_without_the_rest() {
    const EVENTS: u64 = 600;
    let disk = ModelDisk::default();
    let store = on_model(&disk, small()).await.unwrap();
    let writer = store.create(&header("s"), 0).await.unwrap();
    for seq in (0..EVENTS).step_by(2) {
        writer.append(batch(seq, 2)).await.unwrap();
    }
    let (store, id) = (&store, &"s".into());
    let cost = async |range: Range<Seq>| {
        let before = disk.state().read_bytes;
        let events = store.read_events(id, range.clone()).await.unwrap();
        assert_eq!(events, texts(range.start, range.end - range.start));
        disk.state().read_bytes - before
    };
    let whole = cost(0..EVENTS).await;
    let (end, middle) = (cost(EVENTS - 2..EVENTS).await, cost(300..302).await);
    println!("bytes read of {EVENTS} events: all {whole}, the last two {end}, two others {middle}");
    assert!(end > 0 && end * 100 < whole && middle * 100 < whole);
    assert_eq!(store.read_events(id, EVENTS..u64::MAX).await, Ok(Vec::new()));
    let absent = store.read_events(&"t".into(), 0..1).await;
    assert_eq!(absent.unwrap_err().code(), "SESSION_NOT_FOUND");
}
