//! What the process has used: from `/proc`, and so on Linux alone.

use std::{fs, time::Duration};

/// A clock tick of `/proc/self/stat`: 100 a second for user space on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// What the process has used at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Meter {
    /// Of all threads, also of those that have ended.
    cpu: Duration,
    /// Bytes that are resident.
    rss: u64,
}

impl Meter {
    /// Reads it, where the system tells.
    pub(super) fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let rss = status("VmRSS:")?;
        Some(Self { cpu: cpu(&stat)?, rss })
    }

    /// Forgets the peak so far.
    pub(super) fn forget_peak() {
        // Without it the peak is the process's: too large rather than too small.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    /// CPU time and bytes at the peak, beyond what was used when this was read.
    pub(super) fn since(before: Option<Self>) -> (Option<Duration>, Option<u64>) {
        let Some((before, now)) = before.zip(Self::read()) else { return (None, None) };
        let peak = status("VmHWM:").map(|peak| peak.saturating_sub(before.rss));
        (Some(now.cpu.saturating_sub(before.cpu)), peak)
    }
}

/// The name of the program, in brackets, may hold anything; the fields that count stand behind.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(TICK * ticks)
}

fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 150 5 6 20 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(4)));
        assert_eq!(cpu("nothing"), None);
    }
}
