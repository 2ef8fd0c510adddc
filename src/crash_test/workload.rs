//! The writer that is killed.

use std::{io::Write, path::Path, sync::Arc, time::Duration};

use fastrand::Rng;
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

/// Writes to the store in `dir` until the process dies, and tells each promise on standard output
/// once it is made. `life` numbers the lives of the store; `point` is where the process is to die, if
/// it is not killed.
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
    let store = match point {
        Some(point) => config(kind).open_dying(dir, point).await?,
        None => config(kind).open(dir).await?,
    };
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..content::SESSIONS {
        let rng = Rng::with_seed(life * 1000 + number);
        tasks.spawn(write_on(Arc::clone(&store), content::session(number), rng));
    }
    tasks.spawn(put_values(Arc::clone(&store)));
    tasks.spawn(delete(Arc::clone(&store), life));
    while let Some(ended) = tasks.join_next().await {
        let panicked = |fault: tokio::task::JoinError| StoreError::Io {
            what: "the workload".to_owned(),
            cause: fault.to_string(),
        };
        ended.map_err(panicked)??;
    }
    Ok(())
}

/// One write, so that lines of several tasks do not mix. Whoever reads them may be gone: then there is
/// nothing more to do.
fn tell(promise: &Promise) {
    if std::io::stdout().write_all(format!("{promise}\n").as_bytes()).is_err() {
        std::process::exit(0);
    }
}

/// Appends to one session without end: events, tails, flushes, and now and then another writer.
async fn write_on(store: Arc<dyn Store>, id: SessionId, mut rng: Rng) -> Result<(), StoreError> {
    loop {
        let (writer, mut next) = claim(&*store, &id).await?;
        for _ in 0..rng.u32(10..200) {
            step(&*writer, &id, &mut next, &mut rng).await?;
        }
        writer.close().await?;
        tell(&Promise::Durable(id.clone(), next));
    }
}

async fn claim(
    store: &dyn Store,
    id: &SessionId,
) -> Result<(Arc<dyn SessionWriter>, Seq), StoreError> {
    match store.open_write(id).await {
        Ok((writer, session)) => Ok((writer, session.events.len() as Seq)),
        Err(StoreError::NotFound { .. }) => {
            Ok((store.create(&Arc::new(content::header(id)), 0).await?, 0))
        }
        Err(error) => Err(error),
    }
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

async fn put_values(store: Arc<dyn Store>) -> Result<(), StoreError> {
    let last = store.get_value(KEY).await?;
    let last = last.and_then(|value| std::str::from_utf8(&value).ok()?.parse::<u64>().ok());
    let mut n = last.unwrap_or(0);
    loop {
        n += 1;
        store.put_value(KEY, content::value(n)).await?;
        tell(&Promise::Value(n));
        if n % 4 == 0 {
            store.flush().await?;
            tell(&Promise::DurableValue(n));
        }
    }
}

async fn delete(store: Arc<dyn Store>, life: u64) -> Result<(), StoreError> {
    for number in 0.. {
        let id = content::passing(life, number);
        let writer = store.create(&Arc::new(content::header(&id)), 0).await?;
        let events = content::events(&id, 0, 3);
        writer.append(EventBatch { first_seq: 0, events }).await?;
        writer.close().await?;
        store.delete(&id).await?;
        tell(&Promise::Deleted(id));
    }
    Ok(())
}
