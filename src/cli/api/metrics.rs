//! Counts and times of a server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the classes of times, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A distribution of times.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The number of times in each class, which are those up to a bound, and those beyond the last one.
    classes: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Adds a time.
    pub fn add(&self, time: Duration) {
        let class = BOUNDS.iter().position(|b| time.as_secs_f64() <= *b).unwrap_or(BOUNDS.len());
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    fn text(&self, out: &mut String, name: &str, help: &str) {
        let mut sum = 0;
        let mut lines = String::new();
        for (i, class) in self.classes.iter().enumerate() {
            sum += class.load(Ordering::Relaxed);
            let bound = BOUNDS.get(i).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(lines, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = write!(
            out,
            "# HELP {name} {help}\n# TYPE {name} histogram\n{lines}{name}_sum {seconds}\n{name}_count {sum}\n"
        );
    }
}

/// The counts and times of a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Answered requests by path and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Tokens of prompts that have been accepted.
    pub prompt_tokens: AtomicU64,
    /// Tokens that have been generated.
    pub generated_tokens: AtomicU64,
    /// Sequences that are generated now.
    pub running: AtomicU64,
    /// Sequences that wait now.
    pub waiting: AtomicU64,
    /// Sequences whose client went away before they ended.
    pub cancelled: AtomicU64,
    /// Positions of the cache in use.
    pub positions: AtomicU64,
    /// How often the running sequences were processed again.
    pub recomputed: AtomicU64,
    /// Tokens of prompts that were in the cache already.
    pub reused: AtomicU64,
    /// The time from a request to its first token.
    pub first_token: Histogram,
    /// The time between two tokens of a sequence.
    pub inter_token: Histogram,
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, path: &'static str, status: u16) {
        if let Ok(mut requests) = self.requests.lock() {
            *requests.entry((path, status)).or_default() += 1;
        }
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "# HELP wgfc_requests_total Answered requests.\n# TYPE wgfc_requests_total counter"
        );
        if let Ok(requests) = self.requests.lock() {
            for ((path, status), n) in &*requests {
                let _ = writeln!(out, "wgfc_requests_total{{path=\"{path}\",status=\"{status}\"}} {n}");
            }
        }
        for (name, kind, help, value) in [
            ("prompt_tokens_total", "counter", "Tokens of accepted prompts.", &self.prompt_tokens),
            ("generated_tokens_total", "counter", "Generated tokens.", &self.generated_tokens),
            ("cancelled_total", "counter", "Sequences whose client went away.", &self.cancelled),
            (
                "recomputed_total",
                "counter",
                "Times that the running sequences were processed again.",
                &self.recomputed,
            ),
            (
                "prompt_tokens_reused_total",
                "counter",
                "Tokens of prompts that were in the cache and not processed again.",
                &self.reused,
            ),
            ("sequences_running", "gauge", "Sequences that are generated.", &self.running),
            ("sequences_waiting", "gauge", "Sequences that wait.", &self.waiting),
            ("cache_positions", "gauge", "Positions of the cache in use.", &self.positions),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ =
                write!(out, "# HELP wgfc_{name} {help}\n# TYPE wgfc_{name} {kind}\nwgfc_{name} {value}\n");
        }
        self.first_token.text(
            &mut out,
            "wgfc_time_to_first_token_seconds",
            "From a request to its first token.",
        );
        self.inter_token.text(&mut out, "wgfc_inter_token_seconds", "Between two tokens of a sequence.");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_cumulative() {
        let metrics = Metrics::default();
        metrics.answered("/health", 200);
        for ms in [1, 3, 3, 100_000] {
            metrics.first_token.add(Duration::from_millis(ms));
        }
        let text = metrics.text();
        for line in [
            "wgfc_requests_total{path=\"/health\",status=\"200\"} 1",
            "wgfc_time_to_first_token_seconds_bucket{le=\"0.001\"} 1",
            "wgfc_time_to_first_token_seconds_bucket{le=\"0.005\"} 3",
            "wgfc_time_to_first_token_seconds_bucket{le=\"30\"} 3",
            "wgfc_time_to_first_token_seconds_bucket{le=\"+Inf\"} 4",
            "wgfc_time_to_first_token_seconds_sum 100.007",
            "wgfc_inter_token_seconds_count 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
