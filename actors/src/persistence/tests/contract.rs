//! The live write path. A window before writing is none of ours (the store's window is before the
//! sync): what is accepted is written at once, so those cases say what takes its place.

use super::*;

#[tokio::test(start_paused = true)]
async fn b1_what_is_accepted_is_written_at_once() {
    let mut rig = Rig::new("s").await;
    rig.accept(3);
    rig.medium.begun(1).await;
    rig.settle().await;
    rig.assert_stored();
    assert_eq!(rig.cell.marks().borrow().written, 3);
    // Nobody waits for durable, so nobody pays for it here.
    assert_eq!((rig.medium.tried(Op::Flush), rig.cell.marks().borrow().durable), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn b2_what_arrives_during_a_write_is_one_batch() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(1);
    rig.medium.begun(1).await;
    for _ in 0..20 {
        rig.accept(1);
        rig.pass(Duration::from_millis(10)).await;
    }
    rig.medium.release();
    rig.settle().await;
    assert_eq!(rig.medium.shelf().batches, [(0, 1), (1, 20)]);
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn b4_a_flush_makes_durable_and_a_second_writes_nothing() {
    let mut rig = Rig::new("s").await;
    rig.accept(4);
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!((rig.durable(), rig.medium.tried(Op::Append)), (4, 1));
    assert_eq!(rig.cell.marks().borrow().durable, 4);
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!(rig.medium.tried(Op::Append), 1);
}

#[tokio::test(start_paused = true)]
async fn b5_a_failed_write_is_kept_and_lands_once_with_the_next_flush() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 1);
    rig.accept(3);
    rig.settle().await;
    assert_eq!((rig.stored(), rig.medium.tried(Op::Append)), (0, 1));
    assert_eq!(code(rig.flush().await), "true");
    rig.assert_stored();
    assert_eq!(rig.medium.shelf().batches, [(0, 3)]);
}

#[tokio::test(start_paused = true)]
async fn b7_after_a_failure_new_events_wait_for_a_flush_too() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 1);
    rig.accept(2);
    rig.settle().await;
    rig.accept(2);
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!((rig.stored(), rig.medium.tried(Op::Append)), (0, 1));
    assert_eq!(code(rig.flush().await), "true");
    // Old and new together, in order; and after that it goes on by itself.
    assert_eq!(rig.medium.shelf().batches, [(0, 4)]);
    rig.accept(1);
    rig.settle().await;
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn b8_an_event_during_a_write_is_written_right_after_it() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(1);
    rig.medium.begun(1).await;
    rig.accept(1);
    rig.settle().await;
    assert_eq!(rig.medium.tried(Op::Append), 1, "never two at once");
    rig.medium.release();
    rig.medium.begun(2).await;
    rig.settle().await;
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn b9_two_flushes_at_once_share_one_write_and_one_sync() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(2);
    rig.medium.begun(1).await;
    let (one, two) = (rig.flushing().await, rig.flushing().await);
    rig.medium.release();
    assert_eq!(
        (code(one.await.unwrap()), code(two.await.unwrap())),
        ("true".into(), "true".into())
    );
    assert_eq!((rig.medium.tried(Op::Append), rig.medium.tried(Op::Flush)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b11_a_flush_whose_write_fails_tells_its_caller_and_keeps_the_batch() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 2);
    rig.accept(2);
    rig.settle().await;
    let refused = rig.flush().await.unwrap_err();
    assert_eq!(refused.code(), "STORE_IO");
    assert!(refused.to_string().contains("broken"), "{refused}");
    assert_eq!(rig.stored(), 0);
    // The sync may fail as well as the write.
    rig.medium.fail(Op::Flush, 1);
    assert_eq!(code(rig.flush().await), "STORE_IO");
    assert_eq!((rig.stored(), rig.durable()), (2, 0));
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!(rig.durable(), 2);
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn b13_one_session_fails_and_its_neighbour_is_durable() {
    let (mut broken, mut healthy) = (Rig::new("a").await, Rig::new("b").await);
    broken.medium.fail(Op::Append, 2);
    broken.accept(2);
    healthy.accept(3);
    broken.settle().await;
    let (one, two) = futures::join!(broken.flush(), healthy.flush());
    assert_eq!((code(one), code(two)), ("STORE_IO".into(), "true".into()));
    assert_eq!((broken.stored(), healthy.durable()), (0, 3));
    assert_eq!(code(broken.flush().await), "true");
    assert_eq!(broken.medium.shelf().batches, [(0, 2)]);
    broken.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn b14_a_close_drains_and_gives_the_claim_back() {
    let mut rig = Rig::new("s").await;
    rig.accept(3);
    rig.close().await.unwrap();
    rig.assert_stored();
    assert!(rig.medium.shelf().closed && rig.cell.writer.is_closed());
    assert_eq!(rig.durable(), 3);
}

#[tokio::test(start_paused = true)]
async fn b15_closing_while_writes_fail_ends_and_gives_the_claim_back() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 9);
    rig.accept(2);
    rig.settle().await;
    // One more attempt to drain, then the end.
    assert_eq!(rig.close().await.unwrap_err().code, "STORE_IO");
    assert_eq!((rig.medium.tried(Op::Append), rig.medium.shelf().closed), (2, true));
    assert!(rig.cell.writer.is_closed());
    assert_eq!(code(rig.flush().await), "false");
}

#[tokio::test(start_paused = true)]
async fn b17_a_close_that_fails_is_told_and_the_claim_is_free() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Close, 1);
    rig.accept(2);
    assert_eq!(rig.close().await.unwrap_err().code, "STORE_IO");
    rig.assert_stored();
    assert!(rig.medium.shelf().closed && rig.cell.writer.is_closed());
}

#[tokio::test(start_paused = true)]
async fn b18_a_store_that_panics_has_failed_and_no_more() {
    let mut rig = Rig::new("s").await;
    rig.medium.shelf().faults.insert(Op::Append, vec![Fault::Panic; 2]);
    rig.accept(2);
    rig.settle().await;
    let refused = rig.flush().await.unwrap_err();
    assert_eq!(refused.code(), "PANIC");
    assert!(refused.to_string().contains("a store that panics"), "{refused}");
    rig.medium.shelf().faults.insert(Op::Flush, vec![Fault::Panic]);
    assert_eq!(code(rig.flush().await), "PANIC");
    assert_eq!(code(rig.flush().await), "true");
    rig.assert_stored();
    rig.medium.shelf().faults.insert(Op::Close, vec![Fault::Panic]);
    assert_eq!(rig.close().await.unwrap_err().code, "PANIC");
    assert!(rig.cell.writer.is_closed());
}

#[tokio::test(start_paused = true)]
async fn b20_a_huge_backlog_that_failed_is_written_later() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 1);
    rig.accept(150_000);
    rig.settle().await;
    assert_eq!(rig.stored(), 0);
    assert_eq!(code(rig.flush().await), "true");
    rig.assert_stored();
    // In pieces whose memory is bounded, each once.
    let shelf = rig.medium.shelf();
    assert_eq!(shelf.batches.iter().map(|(_, count)| count).sum::<usize>(), 150_000);
    assert!(shelf.batches.iter().all(|(_, count)| *count <= 1024));
}

#[tokio::test(start_paused = true)]
async fn b22_a_close_waits_for_the_write_under_way_and_drains_the_rest() {
    for fails in [0, 1] {
        let mut rig = Rig::new("s").await;
        rig.medium.fail(Op::Append, fails);
        rig.medium.hold(Op::Append);
        rig.accept(2);
        rig.medium.begun(1).await;
        rig.accept(2);
        let cell = rig.cell.clone();
        let closing = tokio::spawn(async move {
            cell.writer.call(|_, reply| WriterMessage::Close { reply }).await.unwrap()
        });
        rig.settle().await;
        assert!(!closing.is_finished() && !rig.medium.shelf().closed);
        rig.medium.release();
        // If the one under way fails, that is what the drain is for.
        closing.await.unwrap().unwrap();
        rig.assert_stored();
        assert!(rig.medium.shelf().closed);
        assert_eq!(rig.durable(), 4);
    }
}
