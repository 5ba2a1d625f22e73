//! How much memory may be asked for.

/// The memory that is taken to be there where the system does not say.
const UNKNOWN: u64 = 8 << 30;

/// Bytes that the machine, and the control group this process is in, can still give.
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

/// Refuses to make something of so many bytes when they are not there.
pub fn afford(bytes: u64) -> Result<(), String> {
    let have = available();
    let fits = || usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
    if bytes <= 1 << 20 || (bytes <= have && fits()) {
        return Ok(());
    }
    Err(format!("takes {} MB, of which {} MB are there", bytes >> 20, have >> 20))
}

/// The most memory that this process has held, in bytes, the pages of mapped files included; Linux says so.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
