//! The report on a training.

use super::super::args::TrainArgs;
use super::super::results::number;
use super::super::signals;
use wgfc::Trainer;
use wgfc::inspect::{bytes_text, table, time_text};
use wgfc::runtime::Gpu;
use wgfc::runtime::session::DeviceMemory;
use wgfc::train::Step;

/// Statistics of the losses of this run, and their times.
pub struct Report {
    /// The steps that were done before this run.
    from: u64,
    steps: u64,
    first: Option<f64>,
    last: Option<f64>,
    least: Option<Step>,
    sum: f64,
    /// The times, in seconds, at which the first and the last loss were known.
    began: f64,
    ended: f64,
}

impl Report {
    pub fn new(from: u64) -> Report {
        Report { from, steps: 0, first: None, last: None, least: None, sum: 0.0, began: 0.0, ended: 0.0 }
    }

    pub fn add(&mut self, step: Step, seconds: f64) {
        if self.steps == 0 {
            (self.first, self.began) = (Some(step.loss), seconds);
        }
        if self.least.is_none_or(|l| step.loss < l.loss) {
            self.least = Some(step);
        }
        self.steps += 1;
        self.sum += step.loss;
        (self.last, self.ended) = (Some(step.loss), seconds);
    }

    fn mean(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.sum / self.steps as f64)
    }

    /// Seconds per step, without the first step.
    fn per_step(&self) -> Option<f64> {
        (self.steps > 1).then(|| (self.ended - self.began) / (self.steps - 1) as f64)
    }

    /// The report as text.
    pub fn text(&self, a: &TrainArgs, trainer: &mut Trainer, gpu: &Gpu) -> String {
        let roles = trainer.roles().clone();
        let mut rows = vec![vec!["ran on".to_owned(), gpu.summary().name.clone()]];
        let mut row = |k: &str, v: String| rows.push(vec![k.to_owned(), v]);
        let order = trainer.seed().map_or("in their order".to_owned(), |s| format!("shuffled with seed {s}"));
        row("data", format!("{} rows, {order}, {} a step", roles.rows, roles.batch));
        let stopped = if signals::pending().is_some() { ", stopped by a signal" } else { "" };
        match self.steps {
            0 => row("steps", format!("none, {} before", self.from)),
            n => row("steps", format!("{n}: {} to {}{stopped}", self.from + 1, self.from + n)),
        }
        if let (Some(first), Some(last), Some(mean)) = (self.first, self.last, self.mean()) {
            let name = format!("`{}`", roles.loss);
            row(
                "loss",
                format!("{} first, {} last, {} mean: {name}", number(first), number(last), number(mean)),
            );
        }
        if let Some(l) = self.least {
            row("least", format!("{} in step {}", number(l.loss), l.number));
        }
        if let Some(s) = self.per_step() {
            row(
                "speed",
                format!("{} a step, {:.1} steps/s; {} in all", time_text(s), 1.0 / s, time_text(self.ended)),
            );
        }
        if let Some(scale) = trainer.loss_scale() {
            row("loss scale", number(scale));
        }
        let m = DeviceMemory::of([&*trainer.session()]);
        let parts = [("weights", m.weights), ("states", m.states), ("activations", m.activations)];
        let parts = parts.map(|(k, v)| format!("{k} {}", bytes_text(v))).join(", ");
        row("device memory", format!("{}: {parts}", bytes_text(m.total())));
        let mut s = table(&rows, &[]);
        for (path, what) in [(&a.checkpoint, "checkpoint"), (&a.log, "losses"), (&a.plot, "plot")] {
            if let Some(path) = path {
                s += &format!("  wrote {} ({what})\n", path.display());
            }
        }
        s
    }

    /// The report as JSON.
    pub fn json(
        &self,
        a: &TrainArgs,
        trainer: &mut Trainer,
        gpu: &Gpu,
        chosen_for: &str,
    ) -> serde_json::Value {
        let roles = trainer.roles().clone();
        let states: Vec<&String> = trainer.session().program().states.iter().map(|s| &s.name).collect();
        let states = serde_json::json!(states);
        serde_json::json!({
            "ran_on": gpu.summary().name,
            "device_profile": chosen_for,
            "random_weights": a.random_weights,
            "rows": roles.rows,
            "batch": roles.batch,
            "seed": trainer.seed(),
            "resumed_after": self.from,
            "steps": self.steps,
            "step": trainer.step(),
            "stopped_by_signal": signals::pending(),
            "loss": {
                "output": roles.loss,
                "first": self.first,
                "last": self.last,
                "mean": self.mean(),
                "least": self.least.map(|l| l.loss),
                "least_step": self.least.map(|l| l.number),
            },
            "loss_scale": trainer.loss_scale(),
            "states": states,
            "carried": roles.states,
            "seconds": self.ended,
            "seconds_per_step": self.per_step(),
            "device_memory_bytes": DeviceMemory::of([&*trainer.session()]).total(),
            "checkpoint": a.checkpoint,
            "log": a.log,
            "plot": a.plot,
        })
    }
}
