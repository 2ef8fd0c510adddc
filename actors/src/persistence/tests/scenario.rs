//! Scenarios of buffering, as the writer has it: nothing is held back, and what could not be written
//! waits in the log.

use super::*;

// There is no barrier that an event could miss: it is written because it was accepted.
#[tokio::test(start_paused = true)]
async fn persistence_20_an_event_in_the_tick_of_a_flush_s_end_is_not_stranded() {
    let mut rig = Rig::new("s").await;
    for round in 1..=20 {
        rig.accept(1);
        assert_eq!(code(rig.flush().await), "true");
        rig.accept(1);
        rig.settle().await;
        assert_eq!(rig.stored(), round * 2);
    }
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn persistence_21_a_failed_write_is_tried_once_until_somebody_flushes() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 1);
    rig.accept(4);
    rig.settle().await;
    for _ in 0..10 {
        rig.pass(Duration::from_millis(200)).await;
        assert_eq!((rig.medium.tried(Op::Append), rig.stored()), (1, 0));
    }
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!(rig.medium.shelf().batches, [(0, 4)]);
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn persistence_22_each_failure_goes_to_its_own_caller_and_nothing_doubles() {
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Append, 3);
    rig.accept(2);
    rig.settle().await;
    assert_eq!(code(rig.flush().await), "STORE_IO");
    rig.accept(1);
    assert_eq!(code(rig.flush().await), "STORE_IO");
    assert_eq!((rig.medium.tried(Op::Append), rig.stored()), (3, 0));
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!(rig.medium.shelf().batches, [(0, 3)]);
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn persistence_23_a_flush_over_a_write_that_fails_tries_again() {
    for (fails, expected) in [(1, "true"), (2, "STORE_IO")] {
        let mut rig = Rig::new("s").await;
        rig.medium.fail(Op::Append, fails);
        rig.medium.hold(Op::Append);
        rig.accept(2);
        rig.medium.begun(1).await;
        let flush = rig.flushing().await;
        rig.medium.release();
        assert_eq!(code(flush.await.unwrap()), expected);
        assert_eq!(rig.medium.tried(Op::Append), 2);
        assert_eq!(code(rig.flush().await), "true");
        assert_eq!(rig.medium.shelf().batches, [(0, 2)]);
    }
    // The same over a sync.
    let mut rig = Rig::new("s").await;
    rig.medium.fail(Op::Flush, 1);
    rig.medium.hold(Op::Flush);
    rig.accept(2);
    let first = rig.flushing().await;
    let second = rig.flushing().await;
    rig.medium.release();
    assert_eq!(code(first.await.unwrap()), "STORE_IO");
    assert_eq!(code(second.await.unwrap()), "true");
    assert_eq!(rig.durable(), 2);
}

#[tokio::test(start_paused = true)]
async fn persistence_24_fifty_flushes_are_two_syncs_at_most() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Flush);
    rig.accept(3);
    let mut flushes = Vec::new();
    for _ in 0..50 {
        flushes.push(rig.flushing().await);
    }
    rig.accept(2);
    rig.medium.release();
    for flush in flushes {
        assert_eq!(code(flush.await.unwrap()), "true");
        assert!(rig.durable() >= 3);
    }
    assert!(rig.medium.tried(Op::Flush) <= 2, "{} syncs", rig.medium.tried(Op::Flush));
}

#[tokio::test(start_paused = true)]
async fn persistence_25_a_flush_covers_all_that_was_accepted_before_it() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(2);
    rig.medium.begun(1).await;
    // Accepted, and not yet with the store.
    rig.accept(3);
    let flush = rig.flushing().await;
    rig.accept(1);
    rig.medium.release();
    assert_eq!(code(flush.await.unwrap()), "true");
    assert!(rig.durable() >= 5, "{} are durable", rig.durable());
    assert_eq!(code(rig.flush().await), "true");
    assert_eq!(rig.durable(), 6);
}

// There is no sweep over sessions: each is flushed for itself, and none waits for another.
#[tokio::test(start_paused = true)]
async fn persistence_26_of_three_flushes_one_fails_one_works_and_one_closes() {
    let (mut a, mut b) = (Rig::new("a").await, Rig::new("b").await);
    let mut c = Rig::new("c").await;
    a.medium.fail(Op::Append, 2);
    for rig in [&mut a, &mut b, &mut c] {
        rig.accept(2);
        rig.settle().await;
    }
    let (broken, healthy, closed, swept) =
        futures::join!(a.flush(), b.flush(), c.close(), c.flush());
    assert_eq!((code(broken), code(healthy)), ("STORE_IO".into(), "true".into()));
    assert!(closed.is_ok() && swept.is_ok());
    assert_eq!((a.durable(), b.durable(), c.durable()), (0, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn persistence_27_a_session_without_a_store_has_nobody_to_flush() {
    let rig = Rig::new("s").await;
    let cell =
        SessionCell::new(&rig.core, 0, Arc::new(KnownKinds::new()), None, 0, Undurable::new(0));
    cell.writer.close();
    let session = Session::new(cell);
    assert!(!session.flush().await.unwrap());
    assert!(!session.is_behind());
    assert_eq!(rig.medium.begun.borrow().to_owned(), 0);
}

// The log is no actor's, so a successor goes on instead of the session being lost.
#[tokio::test(start_paused = true)]
async fn persistence_29_a_writer_that_dies_with_events_leaves_them_to_its_successor() {
    let mut rig = Rig::new("s").await;
    rig.accept(2);
    assert_eq!(code(rig.flush().await), "true");
    rig.medium.hold(Op::Append);
    rig.accept(3);
    rig.medium.begun(3).await;
    let waiting = rig.flushing().await;
    let dead = rig.cell.writer.live().unwrap();
    dead.kill();
    rig.cell.writer.vacate(dead.get_id());
    rig.settle().await;
    // Its task went with it, wherever the store was.
    rig.medium.shelf().under_way = 0;
    rig.medium.release();
    rig.spawn().await;
    // Who waited hears from the successor.
    assert_eq!(code(waiting.await.unwrap()), "true");
    rig.assert_stored();
    assert_eq!(rig.durable(), 5);
}

// A stop outranks what is queued; nothing is lost by it, because nothing but nudges is queued.
#[tokio::test(start_paused = true)]
async fn persistence_30_a_stop_in_place_of_a_close_loses_nothing() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(1);
    rig.medium.begun(1).await;
    for _ in 0..5 {
        rig.accept(1);
    }
    let stopped = rig.cell.writer.live().unwrap();
    stopped.stop(None);
    rig.settle().await;
    rig.cell.writer.vacate(stopped.get_id());
    assert!(!rig.medium.shelf().closed, "the claim outlives it");
    rig.medium.shelf().under_way = 0;
    rig.medium.release();
    rig.spawn().await;
    rig.settle().await;
    rig.assert_stored();
    assert_eq!(code(rig.flush().await), "true");
}

// To cancel is to drop the future.
#[tokio::test(start_paused = true)]
async fn persistence_33_a_flush_that_is_given_up_in_the_queue_is_in_nobody_s_way() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Append);
    rig.accept(2);
    rig.medium.begun(1).await;
    let given_up = rig.flushing().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    let kept = rig.flushing().await;
    rig.medium.release();
    assert_eq!(code(kept.await.unwrap()), "true");
    rig.accept(1);
    assert_eq!(code(rig.flush().await), "true");
    rig.assert_stored();
}

#[tokio::test(start_paused = true)]
async fn persistence_34_what_is_given_up_after_it_was_begun_is_done_to_its_end() {
    let mut rig = Rig::new("s").await;
    rig.medium.hold(Op::Flush);
    rig.accept(2);
    let given_up = rig.flushing().await;
    rig.medium.begun(2).await;
    given_up.abort();
    rig.settle().await;
    rig.medium.release();
    rig.settle().await;
    assert_eq!((rig.durable(), rig.cell.marks().borrow().durable), (2, 2));
    rig.accept(1);
    assert_eq!(code(rig.flush().await), "true");
    rig.assert_stored();
}
