//! Random scripts.

use super::*;

/// Draws by chance, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn agent(&mut self) -> String {
        let prompt = match self.roll(12) {
            0 => "!fail",
            1 | 2 => "!hang",
            3 => "!lost",
            4 => "!refuse",
            _ => "say",
        };
        format!("agent('{prompt} {}')", self.roll(100))
    }

    fn statement(&mut self, depth: u64) -> String {
        match self.roll(if depth == 0 { 6 } else { 10 }) {
            0 | 1 => format!("await {};", self.agent()),
            2 => format!("{};", self.agent()),
            3 => "log('x'); phase('y');".to_owned(),
            4 => "for (let n = 0; n < 2000; n++);".to_owned(),
            5 => {
                if self.roll(4) == 0 {
                    "throw 1;".to_owned()
                } else {
                    "await null;".to_owned()
                }
            }
            6 => format!("try {{ {} }} catch {{}}", self.statement(depth - 1)),
            7 => {
                let tasks: Vec<_> =
                    (0..self.roll(7)).map(|_| format!("() => {}", self.agent())).collect();
                format!("await parallel([{}]);", tasks.join(", "))
            }
            8 => format!(
                "await pipeline([1, 2, 3], async (n) => {{ {} return n }}, () => {});",
                self.statement(depth - 1),
                self.agent()
            ),
            _ => format!("{} {}", self.statement(depth - 1), self.statement(depth - 1)),
        }
    }
}

/// `PLAYHOUSE_SEED` repeats one script and its end; the interleaving is the scheduler's.
#[tokio::test]
async fn random_scripts_that_end_at_random_moments_leave_nothing_and_pair_all_events() {
    let seeds = match std::env::var("PLAYHOUSE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=80).collect(),
    };
    for seed in seeds {
        let mut dice = Dice(seed);
        let script: String = (0..=dice.roll(4)).map(|_| dice.statement(2)).collect();
        println!("PLAYHOUSE_SEED={seed}: {script}");
        let rig = Rig::new().await;
        let (run, seen) = rig.start(&script).await;
        for _ in 0..dice.roll(300) {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
        match dice.roll(4) {
            0 => run.cancel("by chance"),
            1 => rig.parent.dispose().await.unwrap(),
            2 => rig.plugin.stop().await,
            _ => {}
        }
        run.dispose().await.unwrap();
        rig.is_clean(&seen);
        rig.harness.shutdown().await.unwrap();
    }
}
