//! The writer that is killed.

use std::{
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use futures::{future::try_join_all, try_join};
use playhouse_messages::{event::Seq, id::SessionId};
use playhouse_plugin_api::store::{EventBatch, SessionWriter, Store, StoreError};
use playhouse_stores::{FaultPoint, JournalStoreConfig, StoreConfig, StoreKind};

use super::{Promise, content};

/// A store of this kind whose parts are small, so that a short life meets all of them.
pub fn config(kind: StoreKind) -> StoreConfig {
    match kind {
        StoreKind::Journal => {
            let mut config = JournalStoreConfig::default();
            config.journal.segment_bytes = 128 << 10;
            config.window = Duration::from_millis(20);
            StoreConfig::Journal(config)
        }
        kind => StoreConfig::new(kind),
    }
}

/// Writes to the store in `dir` until the process dies, closes it now and then and opens it again, and
/// tells each promise on standard output once it is made. `life` numbers the lives of the store; `point`
/// is where the process is to die, if it is not killed.
///
/// # Errors
///
/// What the store refuses. It should refuse nothing.
pub async fn work(
    kind: StoreKind,
    dir: &Path,
    life: u64,
    point: Option<FaultPoint>,
) -> Result<(), StoreError> {
    for shift in 0.. {
        let store = match point {
            Some(point) => config(kind).open_dying(dir, point).await?,
            None => config(kind).open(dir).await?,
        };
        let last = write_for_a_while(&*store, (life << 16) + shift).await?;
        store.close().await?;
        tell(&Promise::DurableValue(last));
    }
    Ok(())
}

/// All writers at once, until the sessions have had enough. Returns the number of the last value.
async fn write_for_a_while(store: &dyn Store, seed: u64) -> Result<u64, StoreError> {
    let steps = Rng::with_seed(seed).u32(1..200);
    let ended = AtomicBool::new(false);
    let sessions = async {
        let writers = (0..content::SESSIONS).map(|number| {
            let rng = Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(number));
            write_on(store, content::session(number), rng, steps)
        });
        try_join_all(writers).await?;
        ended.store(true, Ordering::Relaxed);
        Ok(())
    };
    let (_, last, ()) =
        try_join!(sessions, put_values(store, &ended), delete(store, seed, &ended))?;
    Ok(last)
}

/// One write, so that lines of several tasks do not mix. Whoever reads them may be gone: then there is
/// nothing more to do.
fn tell(promise: &Promise) {
    if std::io::stdout().write_all(format!("{promise}\n").as_bytes()).is_err() {
        std::process::exit(0);
    }
}

/// Appends to one session: events, tails, flushes, and now and then another writer.
async fn write_on(
    store: &dyn Store,
    id: SessionId,
    mut rng: Rng,
    mut steps: u32,
) -> Result<(), StoreError> {
    while steps > 0 {
        let (writer, mut next) = claim(store, &id).await?;
        let turn = rng.u32(10..200).min(steps);
        for _ in 0..turn {
            step(&*writer, &id, &mut next, &mut rng).await?;
        }
        steps -= turn;
        writer.close().await?;
        tell(&Promise::Durable(id.clone(), next));
    }
    Ok(())
}

/// A writer, and the seq at which it goes on.
async fn claim(
    store: &dyn Store,
    id: &SessionId,
) -> Result<(Arc<dyn SessionWriter>, Seq), StoreError> {
    let (writer, session) = match store.open_write(id).await {
        Ok(opened) => opened,
        Err(StoreError::NotFound { .. }) => {
            return Ok((store.create(&Arc::new(content::header(id)), 0).await?, 0));
        }
        Err(error) => return Err(error),
    };
    let mut next = session.events.len() as Seq;
    // An attempt that a death cut off is over: another with its number would add to its tail.
    let used = session.tail.map_or(0, |tail| tail.attempt + 1).saturating_sub(next);
    if used > 0 {
        append(&*writer, id, &mut next, used).await?;
    }
    Ok((writer, next))
}

async fn step(
    writer: &dyn SessionWriter,
    id: &SessionId,
    next: &mut Seq,
    rng: &mut Rng,
) -> Result<(), StoreError> {
    match rng.u32(0..10) {
        // An attempt is numbered by the length of the log when it begins.
        0 | 1 if *next > 0 => {
            for index in 0..rng.u64(1..5) {
                writer.tail(*next, content::part(id, *next, index)).await?;
                tell(&Promise::Tail(id.clone(), *next, index + 1));
            }
            append(writer, id, next, 1).await
        }
        2 => {
            writer.flush().await?;
            tell(&Promise::Durable(id.clone(), *next));
            Ok(())
        }
        _ => append(writer, id, next, rng.u64(1..6)).await,
    }
}

async fn append(
    writer: &dyn SessionWriter,
    id: &SessionId,
    next: &mut Seq,
    count: u64,
) -> Result<(), StoreError> {
    let events = content::events(id, *next, count);
    writer.append(EventBatch { first_seq: *next, events }).await?;
    *next += count;
    tell(&Promise::Written(id.clone(), *next));
    Ok(())
}

/// The key of the value that is put again and again.
pub(super) const KEY: &str = "counter";

/// Returns the number of the last one.
async fn put_values(store: &dyn Store, ended: &AtomicBool) -> Result<u64, StoreError> {
    let last = store.get_value(KEY).await?;
    let last = last.and_then(|value| std::str::from_utf8(&value).ok()?.parse::<u64>().ok());
    let mut n = last.unwrap_or(0);
    while !ended.load(Ordering::Relaxed) {
        n += 1;
        store.put_value(KEY, content::value(n)).await?;
        tell(&Promise::Value(n));
        if n % 4 == 0 {
            store.flush().await?;
            tell(&Promise::DurableValue(n));
        }
    }
    Ok(n)
}

async fn delete(store: &dyn Store, seed: u64, ended: &AtomicBool) -> Result<(), StoreError> {
    for number in 0.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let id = content::passing(seed, number);
        let writer = store.create(&Arc::new(content::header(&id)), 0).await?;
        let events = content::events(&id, 0, 3);
        writer.append(EventBatch { first_seq: 0, events }).await?;
        writer.close().await?;
        store.delete(&id).await?;
        tell(&Promise::Deleted(id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_attempt_has_the_number_of_one_that_a_death_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let store = config(StoreKind::Journal).open(dir.path()).await.unwrap();
        let id = content::session(0);
        let (mut writer, mut next) = claim(&*store, &id).await.unwrap();
        append(&*writer, &id, &mut next, 2).await.unwrap();
        // Also if the events before it were lost: a tail may reach the disk ahead of them.
        for attempt in [2, 7] {
            writer.tail(attempt, content::part(&id, attempt, 0)).await.unwrap();
            writer.close().await.unwrap();
            (writer, next) = claim(&*store, &id).await.unwrap();
            assert_eq!(next, attempt + 1);
        }
        writer.close().await.unwrap();
        store.close().await.unwrap();
    }
}
