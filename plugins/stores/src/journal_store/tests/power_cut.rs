//! The power goes while many sessions write: what a flush promised is there.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_flush_promised_survives_a_power_cut_under_load() {
    let seed = seed(11);
    let mut cases = 0;
    for round in 0..6 {
        let disk = ModelDisk::default();
        let store = Arc::new(on_model(&disk, small()).await.unwrap());
        let write = |n: u64| {
            let (store, disk) = (Arc::clone(&store), disk.clone());
            tokio::spawn(async move {
                let mut told = vec![(0, 0)];
                let writer = store.create(&header(&format!("s{n}")), 0).await.unwrap();
                for turn in 0..12 {
                    // A fault refuses an append; it is sent again until it is taken.
                    while writer.append(batch(turn * 3, 3)).await.is_err() {}
                    if turn % 2 == 1 && writer.flush().await.is_ok() {
                        told.push((disk.at(), (turn + 1) * 3));
                    }
                    if round % 2 == 1 && turn % 5 == n % 5 {
                        let even = n.is_multiple_of(2);
                        disk.fault(if even { Fault::FailSync } else { Fault::FailWrite });
                    }
                }
                told
            })
        };
        let writers: Vec<_> = (0..8).map(write).collect();
        let mut told = Vec::new();
        for writer in writers {
            told.push(writer.await.unwrap());
        }
        drop(store);
        let mut dice = Dice(seed + round);
        for cut in [Cut::None, Cut::Prefix, Cut::Subset] {
            for _ in 0..20 {
                let at = dice.below(disk.at() + 1);
                let files = disk.after_power_cut(&Default::default(), at, cut, &mut dice);
                let store = on_model(&ModelDisk::from_files(&files), small()).await.unwrap();
                let what = format!("seed {seed} round {round} {cut:?} at {at}");
                assert_eq!(store.damages(), [], "{what}");
                for (n, told) in told.iter().enumerate() {
                    let promised = told.iter().rfind(|(when, _)| *when <= at).unwrap().1;
                    let events = match store.read(&format!("s{n}").into()).await {
                        Ok(session) => session.events,
                        Err(error) => {
                            assert_eq!(error.code(), "SESSION_NOT_FOUND", "{what}: {error}");
                            Vec::new()
                        }
                    };
                    assert!(events.len() as u64 >= promised, "{what}: session {n}");
                    assert_eq!(events.len() % 3, 0, "{what}: half an append");
                    assert_eq!(events, texts(0, events.len() as u64), "{what}");
                }
                cases += 1;
            }
        }
    }
    println!("power cuts under load: cases run {cases}, faults found 0");
}
