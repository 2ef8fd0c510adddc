//! What every store keeps to: one suite of cases, run against each backend.
//!
//! [`persistence_contract!`](crate::persistence_contract) makes a module of tests for a backend, one
//! a case. A case's letter and number say where it belongs: `a` reading, writing and claims, `b`
//! the live write path, `c` what is stored, `d` other processes; `t` tails, `v` values, `p` paging,
//! `x` deletion. `r1` and `r2` (recovery of turns) hold for logs and not for stores, so they are not here.
//!
//! Some cases of a store with dynamic types cannot be written down against this seam, and so cannot
//! fail:
//!
//! - `a2`, arguments of a read that are negative, fractional or no number: a range is of integers.
//!   Reversed and far ranges remain, and are cases.
//! - `a8`, writing through a reader: [`StoreReader`] has no such method. That reading takes no claim
//!   and changes nothing remains.
//! - `a9`, arguments of a closed handle: there is no invalid argument beside a batch, and the closed
//!   check comes first.
//! - `a22`, an operation whose cancellation was asked for before it began: cancelling is dropping the
//!   future, and a future that is not polled or not asked for does nothing.
//! - `a23`, a fractional time: it is an integer. One beyond 2^53 remains.
//! - `a24`, a seeded session without a count, or with a negative one: the count is an argument.
//! - `a25`, changing a batch after the call: the call takes it, and [`Bytes`](bytes::Bytes) do not change. That
//!   dropping and reusing what it was made from changes nothing remains.
//! - `b1` to `b3`, `b6` to `b12`, `b14` to `b16` and `b18` are about the one who waits before it
//!   writes, and are cases of the persistence writer: a store here writes at once.
//! - `c3`, `c4`: a store does not judge kinds of events, it serves them; the log's reader refuses.
//!   `a18` and `c3` show both.

#![allow(clippy::unwrap_used, reason = "a case that meets an error has failed")]

mod claims;
mod fixtures;
mod handle;
mod lease;
mod limits;
mod live;
mod own;
mod scenario;
mod stored;

#[cfg(test)]
mod backends;
#[cfg(test)]
mod differential;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{Store, StoreError, StoreReader};
use tokio::sync::Mutex;

#[cfg(test)]
pub(crate) use fixtures::{batch, header, texts};

/// What a backend may be unable to do, or its tests to bring about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Two instances over one storage may be open for writing at once.
    MultiInstance,
    /// A second instance is refused as long as the first one is open.
    OneInstance,
    /// A reader may be opened beside an instance that writes: [`Backend::open_reader`].
    Readers,
    /// [`Backend::corrupt_tail`].
    CorruptTail,
    /// [`Backend::plant`].
    Plant,
    /// [`Backend::break_writes`].
    BreakWrites,
    /// [`Backend::break_flush`].
    BreakFlush,
}

/// A storage under test: empty when it is made, gone when it is dropped.
///
/// The hooks are called only for capabilities that [`Backend::lacks`] does not deny.
pub trait Backend: Send + Sync + 'static {
    /// Opens a store over the storage: its first life, or the next one after the store of the life
    /// before was closed. With [`Capability::MultiInstance`] also beside it.
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>>;

    /// Why a capability is not there; `None` if it is.
    fn lacks(&self, capability: Capability) -> Option<&'static str>;

    /// Opens a reader beside whatever is open.
    fn open_reader(&self) -> BoxFuture<'_, Result<Arc<dyn StoreReader>, StoreError>> {
        futures::future::ready(Err(StoreError::Argument("no readers".to_owned()))).boxed()
    }

    /// Puts an undecodable fragment behind the last record of a session, as an append that was cut
    /// leaves it. The store is closed.
    fn corrupt_tail(&self, _id: &SessionId) {}

    /// Stores a session of this id whose stored header is this text. The store is
    /// closed.
    fn plant(&self, _id: &SessionId, _header: &str) {}

    /// The stored bytes, whatever they are: equal if nothing was changed.
    fn storage(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Lets every physical write fail from now on, or work again.
    fn break_writes(&self, _on: bool) {}

    /// Lets every attempt to make something durable fail from now on, or work again.
    fn break_flush(&self, _on: bool) {}
}

/// Why a case was not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped(String);

type Outcome = Result<(), Skipped>;

/// A backend, and the life of its store.
struct Context {
    backend: Box<dyn Backend>,
    store: Mutex<Option<Arc<dyn Store>>>,
}

impl Context {
    fn new(backend: impl Backend) -> Self {
        Self { backend: Box::new(backend), store: Mutex::default() }
    }

    /// Skips the case if the backend lacks what it takes.
    fn needs(&self, capability: Capability) -> Outcome {
        match self.backend.lacks(capability) {
            None => Ok(()),
            Some(why) => Err(Skipped(format!("{capability:?}: {why}"))),
        }
    }

    /// The store of this life.
    async fn open(&self) -> Arc<dyn Store> {
        let mut store = self.store.lock().await;
        match &*store {
            Some(store) => Arc::clone(store),
            None => Arc::clone(store.insert(self.backend.open().await.unwrap())),
        }
    }

    /// Ends this life as an orderly process does.
    async fn close(&self) {
        if let Some(store) = self.store.lock().await.take() {
            store.close().await.unwrap();
        }
    }

    /// The store of the next life.
    async fn reopen(&self) -> Arc<dyn Store> {
        self.close().await;
        self.open().await
    }

    /// A second instance beside the first.
    async fn beside(&self) -> Arc<dyn Store> {
        self.backend.open().await.unwrap()
    }
}

/// A case of the contract.
struct Case {
    name: &'static str,
    run: for<'a> fn(&'a Context) -> BoxFuture<'a, Outcome>,
}

async fn run_case(case: &Case, backend: impl Backend) -> Outcome {
    let context = Context::new(backend);
    let outcome = (case.run)(&context).await;
    context.close().await;
    outcome
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(work)
}

/// Runs one case of the suite, by its name, against a fresh backend. A case that the backend cannot
/// run prints why.
///
/// # Panics
///
/// If the backend breaks the contract, or there is no such case.
pub fn run(name: &str, backend: impl Backend) {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("no case is named {name}"));
    if let Err(Skipped(why)) = block_on(run_case(case, backend)) {
        println!("{name} skipped ({why})");
    }
}

/// Runs the whole suite, each case against a backend of its own, and prints how many cases were run
/// and how many were not, and why.
///
/// # Panics
///
/// If a backend breaks the contract.
pub fn report<B: Backend>(name: &str, factory: impl Fn() -> B) {
    let mut skipped: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for case in CASES {
        if let Err(Skipped(why)) = block_on(run_case(case, factory())) {
            skipped.entry(why).or_default().push(case.name);
        }
    }
    let count: usize = skipped.values().map(Vec::len).sum();
    println!("contract of {name}: cases run {}, skipped {count}", CASES.len() - count);
    for (why, cases) in skipped {
        println!("  skipped {}: {why}", cases.join(", "));
    }
}

/// Makes a module of tests: all cases of the [contract](crate::contract) of stores, each against a
/// fresh backend that the factory makes, and a last one that runs them all and prints the count.
///
/// ```
/// use std::sync::Arc;
///
/// use futures::{FutureExt, future::BoxFuture};
/// use playhouse_plugin_api::store::{Store, StoreError};
/// use playhouse_stores::{MemoryStore, contract::{Backend, Capability}};
///
/// struct Memory(MemoryStore);
///
/// impl Backend for Memory {
///     fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
///         let store: Arc<dyn Store> = Arc::new(self.0.reopen());
///         futures::future::ready(Ok(store)).boxed()
///     }
///
///     fn lacks(&self, _: Capability) -> Option<&'static str> {
///         Some("this example has no hooks")
///     }
/// }
///
/// playhouse_stores::persistence_contract!(memory, || Memory(MemoryStore::new()));
/// # playhouse_stores::contract::run("a1_what_was_appended_is_read_back", Memory(MemoryStore::new()));
/// ```
#[macro_export]
macro_rules! persistence_contract {
    ($name:ident, $factory:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports, reason = "a factory may name all of it or none")]
            use super::*;

            #[test]
            fn cases_of_the_contract_are_counted() {
                $crate::contract::report(stringify!($name), $factory);
            }

            $crate::persistence_contract!(@cases tests { $factory });
        }
    };
    (@tests { $factory:expr } $($module:ident: $($case:ident)*;)*) => {
        $($(
            #[test]
            fn $case() {
                $crate::contract::run(stringify!($case), ($factory)());
            }
        )*)*
    };
    (@table {} $($module:ident: $($case:ident)*;)*) => {
        const CASES: &[Case] = &[$($(
            Case { name: stringify!($case), run: |context| $module::$case(context).boxed() },
        )*)*];
    };
    (@cases $then:ident $args:tt) => {
        $crate::persistence_contract! {
            @$then $args
            handle:
                a1_what_was_appended_is_read_back
                a2_any_range_is_read_and_none_reaches_past_the_end
                a8_reading_takes_no_claim_and_changes_nothing
                a10_a_flush_of_the_store_covers_all_its_writers
                a14_a_reader_sees_what_was_appended_before_it_asked
                a15_everything_comes_back_after_a_reopen
                a16_a_gap_is_refused_and_the_log_unchanged
                a16_what_is_stored_already_may_come_again
                a18_any_kind_of_event_is_stored_and_the_log_s_reader_refuses
                a19_a_fragment_behind_the_log_is_never_served
                a20_a_writer_removes_the_fragment
                a21_stat_and_list_agree_and_a_revision_tells_changes
                a21_a_session_made_anew_has_another_revision;
            claims:
                a3_a_pending_session_keeps_its_id
                a4_of_two_creations_at_once_one_wins
                a5_a_stored_session_keeps_its_id_in_the_next_life
                a6_an_absent_session_is_not_found_and_leaves_nothing
                a7_one_writer_at_a_time
                a9_a_closed_writer_refuses_everything
                a9_a_dropped_writer_gives_its_claim_back
                a9_a_closed_store_refuses_everything
                a11_a_pending_session_is_seen_here_and_not_after_a_reopen
                a12_a_pending_session_that_is_closed_never_was
                a13_a_flush_stores_a_session_without_events
                a22_a_dropped_future_has_no_effect_or_the_whole
                a22_an_opening_that_is_abandoned_holds_nothing
                a22_a_closing_that_is_abandoned_gives_the_claim_back;
            limits:
                a17_what_is_no_lossless_json_is_refused_whole
                a17_depth_has_a_limit_and_no_overflow
                a17_odd_strings_and_keys_come_back
                a23_a_header_that_is_refused_reserves_nothing
                a24_a_count_of_inherited_events_is_for_seeded_sessions
                a25_what_the_caller_does_later_changes_nothing
                a26_appends_take_effect_in_the_order_of_the_calls
                a27_an_empty_store_lists_nothing
                a28_odd_ids_never_collide
                a28_ids_without_end_are_refused
                a28_one_event_may_be_large;
            live:
                b4_a_second_flush_has_nothing_to_do
                b5_a_failed_write_takes_nothing_and_is_repeated_once
                b9_flushes_at_once_all_resolve
                b11_a_failed_flush_keeps_the_events_and_tells_each_caller
                b13_one_session_s_refusal_is_not_its_neighbour_s
                b16_closing_the_store_drains_its_writers
                b17_closing_gives_the_claim_back_even_if_the_flush_fails
                b19_a_writer_follows_another
                b20_a_huge_batch_is_one_batch
                b21_sessions_are_written_side_by_side
                b22_closing_waits_for_what_is_under_way
                b23_a_session_that_is_just_stored_is_in_every_list;
            stored:
                c1_a_header_of_another_session_is_damage
                c2_a_header_of_another_version_asks_for_an_upgrade
                c2_a_header_that_is_none_is_damage
                c3_a_required_kind_is_refused_where_the_log_is_loaded
                c4_an_unknown_reason_is_kept_and_a_malformed_event_is_named
                c5_refusals_say_what_was_expected_and_keep_their_codes;
            lease:
                d1_a_second_instance_may_read_and_not_write_the_same
                d2_of_two_pending_sessions_of_one_id_one_is_stored
                d3_readers_take_no_lock
                d5_what_is_not_stored_leaves_nothing_to_others
                d6_a_store_in_use_says_by_whom
                d8_an_instance_that_is_closed_lets_go;
            own:
                t1_a_tail_gathers_parts_until_another_attempt
                t2_a_tail_survives_and_goes_on_after_a_reopen
                t3_parts_of_a_tail_keep_the_order_of_the_calls
                v1_values_are_replaced_and_come_back
                v3_a_removed_value_is_gone_and_may_be_put_again
                v4_keys_are_listed_in_pages
                v2_a_key_has_a_length
                p1_pages_are_ordered_and_complete
                p2_a_page_begins_behind_any_id
                x1_deletion_refuses_what_is_written_or_absent
                x2_a_deleted_session_is_gone_and_its_id_free;
            scenario:
                persistence_1_and_3_what_only_was_claimed_never_was
                persistence_2_a_pending_session_is_listed_here_only
                persistence_4_a_flush_stores_a_session_without_events
                persistence_5_a_count_that_does_not_fit_reserves_nothing
                persistence_6_an_unknown_kind_is_refused_alike_each_time
                persistence_7_of_two_who_open_it_to_write_one_wins
                persistence_8_a_close_that_fails_gives_the_claim_back
                persistence_9_what_a_reader_sees_grows_and_never_shrinks
                persistence_10_a_closed_handle_says_so_before_anything_else
                persistence_11_a_gap_within_a_batch_is_refused
                persistence_12_a_number_that_is_none_is_refused
                persistence_13_deep_nesting_is_refused_and_overflows_nothing
                persistence_14_odd_keys_and_strings_are_alike_in_every_store
                persistence_15_an_ignorable_event_is_served_and_means_nothing
                persistence_16_ignorable_is_true_or_absent
                persistence_17_a_newer_header_asks_for_an_upgrade
                persistence_18_a_header_of_another_session_is_damage
                persistence_35_odd_ids_are_distinct_and_nothing_escapes
                persistence_36_a_batch_is_what_it_was_when_it_was_given;
        }
    };
}

crate::persistence_contract!(@cases table {});

crate::persistence_contract!(memory, backends::Memory::new);
crate::persistence_contract!(journal, || backends::OnDisk::new(true, 64 << 20));
crate::persistence_contract!(journal_of_small_segments, || backends::OnDisk::new(true, 2000));
crate::persistence_contract!(journal_without_index, || backends::OnDisk::new(false, 2000));
crate::persistence_contract!(journal_on_a_failing_disk, backends::OnModelDisk::journal);
crate::persistence_contract!(jsonl, backends::Jsonl::new);
crate::persistence_contract!(jsonl_on_a_failing_disk, backends::OnModelDisk::jsonl);
#[cfg(feature = "sqlite")]
crate::persistence_contract!(sqlite, backends::Sqlite::new);
