//! The thread that generates: sequences of all requests in the rows of one batch.

use super::metrics::Metrics;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use wgfc::generate::{Bounds, ContinuousGenerator, End, Generated, LogProbs, SequenceId};
use wgfc::{Error, Request};

/// A step of a sequence.
pub enum Event {
    /// A token, its log-probabilities if they are asked for, and whether it is the last one.
    Token(i64, Option<LogProbs>, Option<End>),
    /// The sequence has ended without another token.
    Failed(Error),
}

/// A sequence to generate.
pub struct Job {
    pub prompt: Vec<i64>,
    pub request: Request,
    /// Receives the events of the sequences of one request, each with the sequence's index in it. No channel holds more events
    /// than the request has new tokens. The sequence is given up when the receiver is dropped.
    pub sink: UnboundedSender<(usize, Event)>,
    pub index: usize,
    /// Set when the client needs no more of the sequence, while it receives others.
    pub enough: Arc<AtomicBool>,
    /// When the request arrived.
    pub arrived: Instant,
    pub place: Place,
}

impl Job {
    /// Whether the client has gone away before it had enough.
    fn is_cancelled(&self) -> bool {
        self.sink.is_closed() && !self.has_enough()
    }

    /// Hands the client the last event. The place is free before, so that the client can use it at once.
    fn end(self, event: Event) {
        drop(self.place);
        let _ = self.sink.send((self.index, event));
    }

    fn has_enough(&self) -> bool {
        self.enough.load(Ordering::Acquire)
    }
}

/// A sequence's place among those that run or wait; free again when it is dropped.
pub struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The thread that generates, as the server sees it.
pub struct Engine {
    jobs: Sender<Job>,
    places: Arc<AtomicUsize>,
    /// The most sequences that may run or wait.
    most: usize,
    bounds: Bounds,
    healthy: Arc<AtomicBool>,
}

impl Engine {
    /// Starts the thread. `queue` sequences may wait beside those that run.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        generator: ContinuousGenerator,
        queue: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Engine> {
        let (send, receive) = channel();
        let (bounds, most) = (generator.bounds(), generator.batch() + queue);
        let healthy = Arc::new(AtomicBool::new(true));
        let runs = Runs {
            generator,
            running: HashMap::new(),
            waiting: VecDeque::new(),
            metrics,
            healthy: healthy.clone(),
        };
        std::thread::Builder::new().name("engine".into()).spawn(move || runs.serve(&receive))?;
        Ok(Engine { jobs: send, places: Arc::default(), most, bounds, healthy })
    }

    /// The prompts that are accepted.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Whether the device works.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    /// The most sequences that may run or wait.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Places for this many sequences; `None` if there are not as many.
    pub fn places(&self, count: usize) -> Option<Vec<Place>> {
        let more = |taken: usize| taken.checked_add(count).filter(|n| *n <= self.most);
        self.places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some((0..count).map(|_| Place(self.places.clone())).collect())
    }

    /// Hands a sequence to the thread. It fails only if the thread has ended; the job's sink is closed then.
    pub fn submit(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// A sequence that is generated.
struct Running {
    job: Job,
    last: Option<Instant>,
}

/// The state of the thread.
struct Runs {
    generator: ContinuousGenerator,
    running: HashMap<SequenceId, Running>,
    waiting: VecDeque<Job>,
    metrics: Arc<Metrics>,
    healthy: Arc<AtomicBool>,
}

impl Runs {
    /// Generates until no more jobs can come.
    fn serve(mut self, jobs: &Receiver<Job>) {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                self.count();
                match jobs.recv() {
                    Ok(job) => self.waiting.push_back(job),
                    Err(_) => return,
                }
            }
            self.waiting.extend(jobs.try_iter());
            self.drop_unneeded();
            self.admit();
            self.count();
            match self.generator.step() {
                Ok(generated) => generated.into_iter().for_each(|g| self.deliver(g)),
                Err(e) => self.fail(&e),
            }
        }
    }

    /// Gives up sequences whose clients are gone or have enough.
    fn drop_unneeded(&mut self) {
        let metrics = &self.metrics;
        let is_needed = |job: &Job| {
            let cancelled = job.is_cancelled();
            metrics.cancelled.fetch_add(cancelled.into(), Ordering::Relaxed);
            !cancelled && !job.has_enough()
        };
        self.waiting.retain(is_needed);
        let generator = &mut self.generator;
        self.running.retain(|id, r| {
            let is_needed = is_needed(&r.job);
            if !is_needed {
                generator.leave(*id);
            }
            is_needed
        });
    }

    /// Begins sequences that wait, as far as there are rows for them.
    fn admit(&mut self) {
        while self.generator.running() < self.generator.batch() {
            let Some(job) = self.waiting.pop_front() else { return };
            match self.generator.join(&job.prompt, &job.request) {
                Ok(id) => {
                    self.metrics.prompt_tokens.fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
                    self.running.insert(id, Running { job, last: None });
                }
                Err(e) => job.end(Event::Failed(e)),
            }
        }
    }

    /// Hands a token to the client.
    fn deliver(&mut self, g: Generated) {
        let Some(running) = self.running.get_mut(&g.sequence) else { return };
        let now = Instant::now();
        match running.last {
            None => self.metrics.first_token.add(now - running.job.arrived),
            Some(last) => self.metrics.inter_token.add(now - last),
        }
        running.last = Some(now);
        let ended = g.end.is_some() || g.token.is_err();
        let event = match g.token {
            Ok(token) => {
                self.metrics.generated_tokens.fetch_add(1, Ordering::Relaxed);
                Event::Token(token, g.logprobs, g.end)
            }
            Err(e) => Event::Failed(e),
        };
        if !ended {
            // A sequence whose client is gone is given up before the next step.
            let _ = running.job.sink.send((running.job.index, event));
        } else if let Some(running) = self.running.remove(&g.sequence) {
            running.job.end(event);
        }
    }

    /// Ends all running sequences after an error of the device. If it cannot go on, those that wait end too.
    fn fail(&mut self, error: &Error) {
        tracing::error!("{error}");
        let mut all: Vec<Job> = self.running.drain().map(|(_, r)| r.job).collect();
        let works = self.generator.reset().is_ok();
        self.healthy.store(works, Ordering::Release);
        if !works {
            all.extend(self.waiting.drain(..));
        }
        all.into_iter().for_each(|job| job.end(Event::Failed(error.clone())));
    }

    /// Updates the gauges.
    fn count(&self) {
        let set = |gauge: &AtomicU64, value: u64| gauge.store(value, Ordering::Relaxed);
        set(&self.metrics.running, self.running.len() as u64);
        set(&self.metrics.waiting, self.waiting.len() as u64);
        set(&self.metrics.positions, self.generator.positions() as u64);
        set(&self.metrics.recomputed, self.generator.recomputed());
        set(&self.metrics.reused, self.generator.reused());
    }
}
