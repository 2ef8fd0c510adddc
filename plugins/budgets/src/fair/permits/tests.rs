use std::collections::HashMap;

use futures::{FutureExt, future::BoxFuture};
use proptest::prelude::*;

use super::*;

fn permits(cap: usize) -> Permits {
    Permits::new(Caps { global: Some(cap), ..Caps::default() })
}

#[test]
fn a_wait_that_is_dropped_leaves_nothing_behind() {
    let permits = permits(1);
    let held = permits.acquire("a", "p").now_or_never().unwrap();
    let mut waits = Box::pin(permits.acquire("b", "p"));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!((permits.held(), permits.waiting()), (1, 1));
    drop(waits);
    assert_eq!((permits.held(), permits.waiting()), (1, 0));
    drop(held);
    assert_eq!((permits.held(), permits.waiting()), (0, 0));
}

#[test]
fn a_permit_that_arrived_and_was_not_looked_at_goes_to_the_next() {
    let permits = permits(1);
    let held = permits.acquire("a", "p").now_or_never().unwrap();
    let mut first = Box::pin(permits.acquire("b", "p"));
    let mut second = Box::pin(permits.acquire("c", "p"));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(permits.held(), 1, "it is on its way to the first");
    drop(first);
    assert!(second.now_or_never().is_some());
    assert_eq!((permits.held(), permits.waiting()), (0, 0));
}

#[test]
fn a_provider_that_is_full_holds_no_other_back() {
    let providers = HashMap::from([("slow".to_owned(), 1)]);
    let permits = Permits::new(Caps { global: Some(3), providers });
    let slow = permits.acquire("a", "slow").now_or_never().unwrap();
    let mut waits = Box::pin(permits.acquire("a", "slow"));
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(permits.acquire("a", "fast").now_or_never().is_some());
    drop(slow);
    assert!(waits.now_or_never().is_some());
}

proptest! {
    #[test]
    fn permits_return_whatever_is_dropped_when(
        moves in prop::collection::vec((0_u8..4, any::<usize>()), 0..120), cap in 1_usize..5,
    ) {
        let permits = permits(cap);
        let mut waits: Vec<BoxFuture<'_, Permit>> = Vec::new();
        let mut held: Vec<Permit> = Vec::new();
        for (what, which) in moves {
            match what {
                0 => {
                    let permits = &permits;
                    let tree = format!("t{}", which % 4);
                    let mut wait = async move { permits.acquire(&tree, "p").await }.boxed();
                    match wait.as_mut().now_or_never() {
                        Some(permit) => held.push(permit),
                        None => waits.push(wait),
                    }
                }
                1 if !waits.is_empty() => drop(waits.swap_remove(which % waits.len())),
                2 if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                3 if !waits.is_empty() => {
                    let at = which % waits.len();
                    if let Some(permit) = waits[at].as_mut().now_or_never() {
                        held.push(permit);
                        drop(waits.swap_remove(at));
                    }
                }
                _ => {}
            }
            prop_assert!(permits.held() <= cap);
            prop_assert!(permits.held() >= held.len());
        }
        drop((waits, held));
        prop_assert_eq!((permits.held(), permits.waiting()), (0, 0));
        prop_assert!(permits.state().waiters.is_empty());
    }
}
