//! A process group: the child that leads it, and what that has started.

use std::{fmt, time::Duration};

use tokio::process::Child;

/// The first and the longest pause between two looks at a group. Nothing tells when the last process
/// of one ends that is not our child.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A process group. Dropping it kills what is left of it.
///
/// A process that starts a session of its own has left the group, and is out of reach.
#[derive(Debug)]
pub(super) struct Group(Option<platform::Id>);

impl Group {
    /// The group that this child leads.
    pub(super) fn of(child: &Child) -> Self {
        Self(child.id().and_then(platform::id))
    }

    /// Asks all of it to end, or makes it.
    pub(super) fn signal(&self, leader: &mut Child, forced: bool) {
        match self.0 {
            Some(id) => platform::signal(id, forced),
            // Gone already, or on a system without groups.
            None => drop(leader.start_kill()),
        }
    }

    /// Resolves once none of it runs. Safe to drop.
    pub(super) async fn emptied(&mut self) {
        let (mut pause, longest) = PAUSES;
        while self.0.is_some_and(platform::is_live) {
            tokio::time::sleep(pause).await;
            pause = longest.min(pause * 2);
        }
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0.filter(|id| platform::is_live(*id)) {
            platform::signal(id, true);
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(unix)]
mod platform {
    use rustix::{
        io::Errno,
        process::{Pid, Signal, kill_process_group, test_kill_process_group},
    };

    pub(super) type Id = Pid;

    pub(super) fn id(leader: u32) -> Option<Id> {
        Pid::from_raw(leader.try_into().ok()?)
    }

    pub(super) fn signal(id: Id, forced: bool) {
        // One that is gone needs no signal.
        let _ = kill_process_group(id, if forced { Signal::KILL } else { Signal::TERM });
    }

    pub(super) fn is_live(id: Id) -> bool {
        test_kill_process_group(id) != Err(Errno::SRCH) && has_running(id)
    }

    /// Processes that have ended and that their parent, perhaps a careless init, has not reaped are
    /// still of the group.
    #[cfg(target_os = "linux")]
    fn has_running(id: Id) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        let group = id.as_raw_nonzero().to_string();
        processes.flatten().any(|process| {
            let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else {
                return false;
            };
            // The name, in parentheses, may hold anything.
            let after_name = stat.rsplit(')').next().unwrap_or_default();
            let mut fields = after_name.split_ascii_whitespace();
            let (state, _parent) = (fields.next(), fields.next());
            fields.next() == Some(&group) && !matches!(state, Some("Z" | "X"))
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn has_running(_id: Id) -> bool {
        true
    }
}

#[cfg(not(unix))]
mod platform {
    pub(super) type Id = std::convert::Infallible;

    pub(super) fn id(_leader: u32) -> Option<Id> {
        None
    }

    pub(super) fn signal(id: Id, _forced: bool) {
        match id {}
    }

    pub(super) fn is_live(id: Id) -> bool {
        match id {}
    }
}
