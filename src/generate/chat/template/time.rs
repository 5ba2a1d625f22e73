//! Python's `strftime` in UTC, with English names.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The most bytes of a format.
const FORMAT: usize = 1024;

/// The time as `format` specifies it.
pub fn strftime(format: &str, time: SystemTime) -> Result<String, String> {
    if format.len() > FORMAT {
        return Err(format!("the format of a time has {} bytes; at most {FORMAT} are allowed", format.len()));
    }
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let days = seconds / 86400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = date(days);
    let week_day = (days + 4) % 7;
    let year_day = days - days_before(year) + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // `%-d` has no leading zeros.
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let mut put = |n: u64, width: usize| {
            let _ = if padded { write!(out, "{n:0width$}") } else { write!(out, "{n}") };
        };
        let noon = if hour % 12 == 0 { 12 } else { hour % 12 };
        let month_name = MONTHS[(month - 1) as usize % 12];
        let day_name = DAYS[week_day as usize % 7];
        let again = |format: &str| strftime(format, time);
        match directive {
            Some('Y') => put(year, 4),
            Some('y') => put(year % 100, 2),
            Some('m') => put(month, 2),
            Some('d') => put(day, 2),
            Some('H') => put(hour, 2),
            Some('I') => put(noon, 2),
            Some('M') => put(minute, 2),
            Some('S') => put(second, 2),
            Some('j') => put(year_day, 3),
            Some('f') => put(since.subsec_micros().into(), 6),
            Some('w') => put(week_day, 1),
            Some('u') => put((week_day + 6) % 7 + 1, 1),
            Some('s') => put(seconds, 1),
            Some('e') => _ = if padded { write!(out, "{day:2}") } else { write!(out, "{day}") },
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('F') => out += &again("%Y-%m-%d")?,
            Some('T' | 'X') => out += &again("%H:%M:%S")?,
            Some('R') => out += &again("%H:%M")?,
            Some('D' | 'x') => out += &again("%m/%d/%y")?,
            Some('c') => out += &again("%a %b %e %H:%M:%S %Y")?,
            Some('%') => out.push('%'),
            Some(other) => return Err(format!("`%{other}` in the format of a time is not known")),
            None => return Err("the format of a time ends with `%`".into()),
        }
    }
    Ok(out)
}

/// The days from 1970 to the beginning of a year.
fn days_before(year: u64) -> u64 {
    let y = year - 1;
    y * 365 + y / 4 - y / 100 + y / 400 - 719_162
}

/// The year, month and day of a day since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days * 400 / 146_097;
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let mut left = days - days_before(year);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        (left, month) = (left - length, month + 1);
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_python_writes_them() {
        let at = |s: u64| UNIX_EPOCH + Duration::from_secs(s);
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %-d %-m %I %p %y %w %u %e|%%";
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00 001 Thu Thursday Jan January 1 1 12 AM 70 4 4  1|%"),
            (951_827_696, "2000-02-29 12:34:56 060 Tue Tuesday Feb February 29 2 12 PM 00 2 2 29|%"),
            (1_735_689_599, "2024-12-31 23:59:59 366 Tue Tuesday Dec December 31 12 11 PM 24 2 2 31|%"),
            (4_107_542_400, "2100-03-01 00:00:00 060 Mon Monday Mar March 1 3 12 AM 00 1 1  1|%"),
        ] {
            assert_eq!(strftime(all, at(seconds)).unwrap(), want);
        }
        assert_eq!(strftime("%F %T %R %D", at(0)).unwrap(), "1970-01-01 00:00:00 00:00 01/01/70");
        assert!(strftime("%Q", at(0)).is_err() && strftime("%", at(0)).is_err());
    }
}
