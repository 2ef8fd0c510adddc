//! Deliveries whose process dies between any two effects, and whose disks keep any prefix of what was
//! not synced.

use playhouse_messages::id::MessageId;
use proptest::{prelude::*, sample::Index};

use crate::{
    Delivery,
    mailbox::{Next, Recorded, next},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeadRecord {
    Queued(usize),
    Delivered(usize),
}

/// A log of which a prefix is durable.
#[derive(Debug, Clone)]
struct Log<T> {
    events: Vec<T>,
    durable: usize,
}

impl<T> Log<T> {
    fn new() -> Self {
        Self { events: Vec::new(), durable: 0 }
    }

    fn flush(&mut self) {
        self.durable = self.events.len();
    }

    /// Power fails; some of what was not synced may have been written all the same.
    fn lose(&mut self, luck: Index) {
        let kept = self.durable + luck.index(self.events.len() - self.durable + 1);
        self.events.truncate(kept);
        self.durable = kept;
    }
}

#[derive(Debug, Clone, Copy)]
enum TargetEvent {
    Came(usize),
    Claimed(usize),
}

#[derive(Debug)]
struct World {
    lead: Log<LeadRecord>,
    target: Log<TargetEvent>,
    live: bool,
    kinds: Vec<Delivery>,
    /// Messages that a sender was told are recorded.
    promised: Vec<usize>,
}

/// The process dies here.
struct Crash;

/// Counts effects, and crashes before one of them.
struct Fuse(usize);

impl Fuse {
    fn burn(&mut self) -> Result<(), Crash> {
        self.0 = self.0.checked_sub(1).ok_or(Crash)?;
        Ok(())
    }
}

impl World {
    fn recorded(&self, message: usize) -> Recorded {
        let at = |event: &TargetEvent| match event {
            TargetEvent::Came(id) if *id == message => Some(Recorded::Waits),
            TargetEvent::Claimed(id) if *id == message => Some(Recorded::Taken),
            _ => None,
        };
        self.target.events.iter().rev().find_map(at).unwrap_or(Recorded::Absent)
    }

    fn pending(&self) -> Vec<usize> {
        let events = &self.lead.events;
        let queued = events.iter().filter_map(|event| match event {
            LeadRecord::Queued(id) => Some(*id),
            LeadRecord::Delivered(_) => None,
        });
        queued.filter(|id| !events.contains(&LeadRecord::Delivered(*id))).collect()
    }

    /// A target's log takes an id once.
    fn send(&mut self, message: usize) {
        if self.recorded(message) == Recorded::Absent {
            self.target.events.push(TargetEvent::Came(message));
        }
    }

    fn queue(&mut self, delivery: Delivery, fuse: &mut Fuse) -> Result<(), Crash> {
        let id = self.kinds.len();
        self.kinds.push(delivery);
        fuse.burn()?;
        self.lead.events.push(LeadRecord::Queued(id));
        fuse.burn()?;
        self.lead.flush();
        self.promised.push(id);
        Ok(())
    }

    /// As a carrier does it: the first, or the first that wakes if the first must stay.
    fn carry(&mut self, fuse: &mut Fuse) -> Result<(), Crash> {
        loop {
            let pending = self.pending();
            let wakes = pending.iter().find(|id| self.kinds[**id] == Delivery::Wakeup);
            let step = |id: usize| next(self.kinds[id], self.live, self.recorded(id));
            let Some(mut message) = pending.first().copied() else { return Ok(()) };
            if step(message) == Next::Stay {
                match wakes {
                    Some(wakes) => message = *wakes,
                    None => return Ok(()),
                }
            }
            let step = step(message);
            fuse.burn()?;
            match step {
                Next::Acknowledge => {}
                Next::Inject => self.send(message),
                Next::Wake => {
                    if !self.live {
                        // Its set-up takes what waits quietly before what wakes it.
                        let first = |id: &&usize| self.kinds[**id] == Delivery::Quiet;
                        let quiet: Vec<_> = pending.iter().take_while(first).copied().collect();
                        for quiet in quiet {
                            self.send(quiet);
                            fuse.burn()?;
                        }
                        self.live = true;
                    }
                    self.send(message);
                }
                Next::Stay => panic!("a message that wakes stays, and its target can be read"),
            }
            fuse.burn()?;
            self.target.flush();
            fuse.burn()?;
            assert_ne!(self.recorded(message), Recorded::Absent, "seen before it is acknowledged");
            self.lead.events.push(LeadRecord::Delivered(message));
            fuse.burn()?;
            self.lead.flush();
        }
    }

    /// The target takes all that it has, and rests.
    fn turn(&mut self) {
        for id in 0..self.kinds.len() {
            if self.recorded(id) == Recorded::Waits {
                self.target.events.push(TargetEvent::Claimed(id));
            }
        }
        self.target.flush();
        self.live = false;
    }
}

#[derive(Debug, Clone)]
enum Move {
    Queue(bool),
    Carry,
    Turn,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_between_any_two_effects_neither_loses_nor_doubles_a_message(
        lives in prop::collection::vec(
            (
                prop::collection::vec(
                    prop_oneof![
                        3 => any::<bool>().prop_map(Move::Queue),
                        3 => Just(Move::Carry),
                        1 => Just(Move::Turn),
                    ],
                    1..8,
                ),
                0..24usize,
                any::<Index>(),
                any::<Index>(),
            ),
            1..5,
        ),
    ) {
        let mut world = World {
            lead: Log::new(),
            target: Log::new(),
            live: false,
            kinds: Vec::new(),
            promised: Vec::new(),
        };
        for (moves, effects, luck_of_lead, luck_of_target) in lives {
            let mut fuse = Fuse(effects);
            for one in moves {
                let alive = match one {
                    Move::Queue(wakes) => {
                        let delivery = if wakes { Delivery::Wakeup } else { Delivery::Quiet };
                        world.queue(delivery, &mut fuse)
                    }
                    Move::Carry => world.carry(&mut fuse),
                    Move::Turn => {
                        world.turn();
                        Ok(())
                    }
                };
                if alive.is_err() {
                    break;
                }
            }
            world.lead.lose(luck_of_lead);
            world.target.lose(luck_of_target);
            world.live = false;
        }
        // A last life in which nothing dies, and somebody wakes the target.
        let mut fuse = Fuse(usize::MAX);
        let settled = world.queue(Delivery::Wakeup, &mut fuse).and(world.carry(&mut fuse));
        prop_assert!(settled.is_ok());
        prop_assert_eq!(world.pending(), Vec::<usize>::new());
        let came: Vec<_> = world.target.events.iter().filter_map(|event| match event {
            TargetEvent::Came(id) => Some(*id),
            TargetEvent::Claimed(_) => None,
        }).collect();
        let mut once = came.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), came.len(), "doubled: {:?}", came);
        for id in &world.promised {
            prop_assert!(came.contains(id), "lost: {id} of {came:?}");
        }
        // Messages of one kind come in the order in which they were queued.
        for kind in [Delivery::Quiet, Delivery::Wakeup] {
            let of_kind = came.iter().filter(|id| world.kinds[**id] == kind);
            prop_assert!(of_kind.is_sorted(), "{came:?}");
        }
    }
}

#[test]
fn what_a_delivery_does_next() {
    use Delivery::{Quiet, Wakeup};
    use Recorded::{Absent, Taken, Unknown, Waits};
    for (delivery, recorded, live, not_live) in [
        (Quiet, Absent, Next::Inject, Next::Stay),
        (Quiet, Unknown, Next::Inject, Next::Stay),
        (Quiet, Waits, Next::Acknowledge, Next::Acknowledge),
        (Quiet, Taken, Next::Acknowledge, Next::Acknowledge),
        (Wakeup, Absent, Next::Wake, Next::Wake),
        (Wakeup, Unknown, Next::Wake, Next::Stay),
        (Wakeup, Waits, Next::Acknowledge, Next::Wake),
        (Wakeup, Taken, Next::Acknowledge, Next::Acknowledge),
    ] {
        assert_eq!(next(delivery, true, recorded), live, "{delivery:?} {recorded:?}, live");
        assert_eq!(next(delivery, false, recorded), not_live, "{delivery:?} {recorded:?}");
    }
}

#[test]
fn what_a_log_says_of_a_message() {
    use playhouse_messages::{
        event::{EventBody, InboxTarget, NewEvent},
        inbox::Inbox,
        log::Log,
        message::Message,
    };
    let id = MessageId::from("m");
    let message = std::sync::Arc::new(Message::user("m", "x"));
    let inbox = Inbox::new();
    let came = inbox.insert_at_tail(InboxTarget::NextTurn, message).unwrap();
    let mut held = Inbox::new();
    held.apply(0, &came).unwrap();
    let (claims, _) = held.claim(InboxTarget::NextTurn);
    let event = |seq, splice| {
        std::sync::Arc::new(NewEvent::log_only(EventBody::InboxSpliced(splice)).at(seq, 0))
    };
    let mut log = Log::new();
    assert_eq!(Recorded::stored(&log, &id), Recorded::Absent);
    log.push(event(0, came));
    assert_eq!(Recorded::stored(&log, &id), Recorded::Waits);
    log.push(event(1, claims[0].clone()));
    assert_eq!(Recorded::stored(&log, &id), Recorded::Taken);
}
