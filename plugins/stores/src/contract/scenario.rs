//! The numbered scenarios of the seam, each by its name; most are cases that the tables list too.

use playhouse_messages::session::SessionCore;
use playhouse_messages::session_state::KnownKinds;

use super::fixtures::*;
use super::{Context, Outcome, claims, handle, limits, live, stored};

pub(super) async fn persistence_1_and_3_what_only_was_claimed_never_was(c: &Context) -> Outcome {
    claims::a12_a_pending_session_that_is_closed_never_was(c).await
}

pub(super) async fn persistence_2_a_pending_session_is_listed_here_only(c: &Context) -> Outcome {
    claims::a11_a_pending_session_is_seen_here_and_not_after_a_reopen(c).await
}

pub(super) async fn persistence_4_a_flush_stores_a_session_without_events(c: &Context) -> Outcome {
    claims::a13_a_flush_stores_a_session_without_events(c).await
}

// A seeded session without a count cannot be written down; a count without a seed can.
pub(super) async fn persistence_5_a_count_that_does_not_fit_reserves_nothing(
    c: &Context,
) -> Outcome {
    limits::a24_a_count_of_inherited_events_is_for_seeded_sessions(c).await
}

pub(super) async fn persistence_6_an_unknown_kind_is_refused_alike_each_time(
    c: &Context,
) -> Outcome {
    handle::a18_any_kind_of_event_is_stored_and_the_log_s_reader_refuses(c).await
}

pub(super) async fn persistence_7_of_two_who_open_it_to_write_one_wins(c: &Context) -> Outcome {
    claims::a4_of_two_creations_at_once_one_wins(c).await
}

pub(super) async fn persistence_8_a_close_that_fails_gives_the_claim_back(c: &Context) -> Outcome {
    live::b17_closing_gives_the_claim_back_even_if_the_flush_fails(c).await
}

pub(super) async fn persistence_9_what_a_reader_sees_grows_and_never_shrinks(
    c: &Context,
) -> Outcome {
    handle::a14_a_reader_sees_what_was_appended_before_it_asked(c).await
}

// A read has no handle; of a closed writer's arguments none is looked at either.
pub(super) async fn persistence_10_a_closed_handle_says_so_before_anything_else(
    c: &Context,
) -> Outcome {
    claims::a9_a_closed_writer_refuses_everything(c).await
}

pub(super) async fn persistence_11_a_gap_within_a_batch_is_refused(c: &Context) -> Outcome {
    handle::a16_a_gap_is_refused_and_the_log_unchanged(c).await
}

pub(super) async fn persistence_12_a_number_that_is_none_is_refused(c: &Context) -> Outcome {
    limits::a17_what_is_no_lossless_json_is_refused_whole(c).await
}

pub(super) async fn persistence_13_deep_nesting_is_refused_and_overflows_nothing(
    c: &Context,
) -> Outcome {
    limits::a17_depth_has_a_limit_and_no_overflow(c).await
}

pub(super) async fn persistence_14_odd_keys_and_strings_are_alike_in_every_store(
    c: &Context,
) -> Outcome {
    limits::a17_odd_strings_and_keys_come_back(c).await
}

/// What is ignorable is kept and means nothing; a fork copies events as they are.
pub(super) async fn persistence_15_an_ignorable_event_is_served_and_means_nothing(
    context: &Context,
) -> Outcome {
    let mut log = turns();
    let text = r#"{"type":"x/y","seq":8,"time":1,"data":{"a":[1]},"ignorable":true}"#;
    log.push(text.into());
    let batch = playhouse_plugin_api::store::EventBatch { first_seq: 0, events: log };
    store_one(&*context.open().await, "s", batch).await;
    let session = context.reopen().await.read(&"s".into()).await.unwrap();
    assert_eq!(session.events[8], text);
    let (header, log) = (session.header.clone(), session.log().unwrap());
    let without = log.iter().take(8).cloned().collect();
    let load = |log| SessionCore::load(header.clone(), log, &KnownKinds::new()).unwrap();
    let (with, without) = (load(log), load(without));
    assert_eq!(with.log().get(8).unwrap().to_json(), text);
    assert_eq!(with.state().history().len(), without.state().history().len());
    assert_eq!(with.state().boundary().last_turn(), without.state().boundary().last_turn());
    Ok(())
}

pub(super) async fn persistence_16_ignorable_is_true_or_absent(context: &Context) -> Outcome {
    let store = context.open().await;
    let writer = store.create(&header("s"), 0).await.unwrap();
    for flag in ["false", "null", "1", "\"true\""] {
        let text = format!(r#"{{"type":"x/y","seq":0,"time":1,"data":{{}},"ignorable":{flag}}}"#);
        assert_eq!(code(writer.append(one(0, text.into())).await), "INVALID_ARGUMENT");
    }
    writer.append(batch(0, 1)).await.unwrap();
    assert_eq!(events(&*store, "s").await, texts(0, 1));
    Ok(())
}

pub(super) async fn persistence_17_a_newer_header_asks_for_an_upgrade(c: &Context) -> Outcome {
    stored::c2_a_header_of_another_version_asks_for_an_upgrade(c).await
}

pub(super) async fn persistence_18_a_header_of_another_session_is_damage(c: &Context) -> Outcome {
    stored::c1_a_header_of_another_session_is_damage(c).await
}

pub(super) async fn persistence_35_odd_ids_are_distinct_and_nothing_escapes(
    c: &Context,
) -> Outcome {
    limits::a28_odd_ids_never_collide(c).await
}

pub(super) async fn persistence_36_a_batch_is_what_it_was_when_it_was_given(
    c: &Context,
) -> Outcome {
    limits::a25_what_the_caller_does_later_changes_nothing(c).await
}
