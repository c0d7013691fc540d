//! What a process costs (Linux: proc(5)).

use std::fs;
use std::io;
use std::time::Duration;

/// `/proc/PID/stat` counts in these, which on Linux are hundredths of a second everywhere (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// Looks at one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gauge {
    pid: u32,
}

impl Gauge {
    pub(super) const fn new(pid: u32) -> Self {
        Self { pid }
    }

    /// This process.
    pub(super) fn own() -> Self {
        Self { pid: std::process::id() }
    }

    /// The CPU time of all of its threads so far, in user space and in the kernel.
    pub(super) fn cpu(self) -> io::Result<Duration> {
        parse_cpu(&fs::read_to_string(format!("/proc/{}/stat", self.pid))?)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The memory that it has resident now, in bytes.
    pub(super) fn memory(self) -> io::Result<u64> {
        self.status("VmRSS:")
    }

    /// The most memory that it had resident since [`forget_peak`](Self::forget_peak), in bytes.
    pub(super) fn peak_memory(self) -> io::Result<u64> {
        self.status("VmHWM:")
    }

    /// Lets the peak begin anew. A system that refuses leaves the peak of the process's life.
    pub(super) fn forget_peak(self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid), "5");
    }

    fn status(self, name: &str) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let kib =
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.ok_or(io::ErrorKind::InvalidData)? * 1024)
    }
}

/// The command's name may hold anything, parentheses and blanks too: what counts comes after its end.
fn parse_cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11).map(|field| field.parse::<u32>().ok());
    let (user, system) = (fields.next()??, fields.next()??);
    Some(TICK * (user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_after_a_name_with_anything_in_it() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 120 30 7 8 20 0 9 0 100 1000 10";
        assert_eq!(parse_cpu(stat), Some(Duration::from_millis(1_500)));
        assert_eq!(parse_cpu("42 (a"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_peak() {
        let own = Gauge::own();
        own.cpu().unwrap();
        let memory = own.memory().unwrap();
        assert!(memory > 0 && own.peak_memory().unwrap() >= memory / 2);
    }
}
