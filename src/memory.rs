//! The memory that is available.

/// The memory that is assumed if the system does not report it.
const UNKNOWN: u64 = 8 << 30;

/// The bytes of memory that are available to this process, within its control group.
///
/// ```
/// use wgfc::memory::{afford, available, peak};
/// println!("{} bytes are available, and at most {:?} were used so far", available(), peak());
/// assert!(afford(1024).is_ok() && afford(u64::MAX).is_err());
/// ```
pub fn available() -> u64 {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    });
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    match (machine, group) {
        (Some(m), Some(g)) => m.min(g),
        (Some(m), None) => m,
        (None, g) => g.unwrap_or(UNKNOWN),
    }
}

/// An error if this many bytes of memory are not available.
pub fn afford(bytes: u64) -> Result<(), String> {
    let have = available();
    let fits = || usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
    if bytes <= 1 << 20 || (bytes <= have && fits()) {
        return Ok(());
    }
    Err(format!("takes {} MB, of which {} MB are there", bytes >> 20, have >> 20))
}

/// The peak resident memory of this process in bytes, including pages of mapped files; `None` except on Linux.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
