//! Compilation for the page: models are compiled here instead of by the compiler's module in the page.
//!
//! A request for `compile` has the model's graph and what is asked of it (`wgfc_compiler::requests`). The model's files stay in the page.
//! While the compiler waits for bytes of one, the answer has status 202 and says which; they are sent to `compile/JOB`, whose answer is the next
//! one. The last one has status 200, the answer's JSON and its data.

use super::http::{Answer, Content, NOTHING};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wgfc::compiler::requests::{self, Answer as Compiled};
use wgfc::ir::derived::Derivation;
use wgfc::ir::remote::Files;

/// The most models that are compiled at a time.
const MOST: usize = 4;
/// The least bytes that are asked for at once, as the compiler reads one tensor after another.
const WINDOW: usize = 256 << 10;
/// The time after which a page that sends no bytes is taken to be closed.
const PATIENCE: Duration = Duration::from_secs(120);
/// The stack of a compilation, as large as those of programs' main threads.
const STACK: usize = 8 << 20;

/// The next step of a compilation: bytes that it waits for, or its answer.
enum Step {
    /// It waits for these bytes of a file, or fewer at the file's end.
    Read {
        file: usize,
        offset: u64,
        bytes: usize,
    },
    Done(Compiled),
}

/// A compilation as its thread sees it.
struct Asking {
    steps: Sender<Step>,
    page: Mutex<FromPage>,
}

struct FromPage {
    given: Receiver<Vec<u8>>,
    /// The last bytes that came, their file and their offset.
    last: (usize, u64, Vec<u8>),
}

impl Files for Asking {
    fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> bool {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |(of, from, bytes): &(usize, u64, Vec<u8>), into: &mut [u8]| {
            let start =
                offset.checked_sub(*from).filter(|_| *of == file).and_then(|n| usize::try_from(n).ok());
            let part = start.and_then(|start| bytes.get(start..start.checked_add(into.len())?));
            part.map(|part| into.copy_from_slice(part)).is_some()
        };
        if held(&page.last, into) {
            return true;
        }
        if self.steps.send(Step::Read { file, offset, bytes: into.len().max(WINDOW) }).is_err() {
            return false;
        }
        let Ok(bytes) = page.given.recv_timeout(PATIENCE) else { return false };
        page.last = (file, offset, bytes);
        held(&page.last, into)
    }
}

/// A compilation as requests see it.
struct Job {
    steps: Mutex<Receiver<Step>>,
    given: Mutex<Sender<Vec<u8>>>,
    thread: JoinHandle<()>,
    /// The time of the last request for it.
    asked: Mutex<Instant>,
}

impl Job {
    fn new(model: Vec<u8>, request: String) -> std::io::Result<Job> {
        let ((to_request, steps), (given, from_page)) = (channel(), channel());
        let page = Mutex::new(FromPage { given: from_page, last: (0, 0, vec![]) });
        let asking = Box::new(Asking { steps: to_request.clone(), page });
        let thread =
            std::thread::Builder::new().name("compile".into()).stack_size(STACK).spawn(move || {
                // Nobody asks for the result where the page was closed.
                let _ = to_request.send(Step::Done(requests::compile(&model, &request, asking)));
            })?;
        let (steps, given) = (Mutex::new(steps), Mutex::new(given));
        Ok(Job { steps, given, thread, asked: Mutex::new(Instant::now()) })
    }

    fn asked(&self) -> Instant {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended, and no page has asked for the result for a while.
    fn is_forgotten(&self) -> bool {
        self.thread.is_finished() && self.asked().elapsed() > PATIENCE
    }
}

/// All compilations that go on.
#[derive(Default)]
pub struct Jobs {
    all: Mutex<(u64, HashMap<u64, Arc<Job>>)>,
}

impl Jobs {
    /// The answer to a request for `path` below the address of compilation.
    pub fn answer(&self, path: &str, body: Vec<u8>) -> Answer {
        match path.split_once('/') {
            None if path == "compile" => self.begin(body),
            Some(("compile", job)) => match job.parse() {
                Ok(job) => self.go_on(job, body),
                Err(_) => Answer::Refused(404, "there is no such compilation"),
            },
            Some(("blocks", name)) => blocks(name, &body),
            _ => Answer::Refused(404, "there is no such address to send to"),
        }
    }

    fn begin(&self, mut body: Vec<u8>) -> Answer {
        const UNLIKE: Answer =
            Answer::Refused(400, "the request is cut off: the length of its JSON, that and the model");
        let Some(length) = body.first_chunk().map(|n| u32::from_le_bytes(*n) as usize) else { return UNLIKE };
        let Some(request) = body.get(4..).and_then(|rest| rest.get(..length)) else { return UNLIKE };
        let Ok(request) = String::from_utf8(request.to_vec()) else { return UNLIKE };
        body.drain(..4 + length);
        let (number, job) = {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.1.retain(|_, job| !job.is_forgotten());
            // The compilation that has waited longest for its page makes room, as that may have been closed.
            let idle = all.1.iter().filter(|(_, job)| job.steps.try_lock().is_ok());
            let longest = idle.min_by_key(|(_, job)| job.asked()).map(|(number, _)| *number);
            if all.1.len() >= MOST && longest.and_then(|number| all.1.remove(&number)).is_none() {
                return Answer::Refused(
                    503,
                    "four models are being compiled: try again when one of them is done",
                );
            }
            let Ok(job) = Job::new(body, request) else {
                return Answer::Refused(
                    503,
                    "this machine starts no further thread: end other programs and try again",
                );
            };
            let job = Arc::new(job);
            all.0 += 1;
            let number = all.0;
            all.1.insert(number, job.clone());
            (number, job)
        };
        self.next(number, &job)
    }

    fn go_on(&self, number: u64, bytes: Vec<u8>) -> Answer {
        let job = self.all.lock().unwrap_or_else(PoisonError::into_inner).1.get(&number).cloned();
        let Some(job) = job else {
            return Answer::Refused(404, "the compilation has ended: open the model again");
        };
        *job.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        // The thread has ended where this cannot be sent, which the next step says.
        let _ = job.given.lock().unwrap_or_else(PoisonError::into_inner).send(bytes);
        self.next(number, &job)
    }

    /// Waits for the next step of a compilation.
    fn next(&self, number: u64, job: &Job) -> Answer {
        let step = {
            let steps = job.steps.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match steps.recv_timeout(Duration::from_secs(1)) {
                    Ok(step) => break Some(step),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break None,
                }
            }
        };
        *job.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        if let Some(Step::Read { file, offset, bytes }) = step {
            let read = serde_json::json!({ "job": number, "file": file, "offset": offset, "bytes": bytes });
            return made(202, "application/json", read.to_string().into_bytes());
        }
        self.all.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number);
        let Some(Step::Done(Compiled { json, data })) = step else {
            return Answer::Refused(500, "the compiler broke off: this is a bug in wgfc");
        };
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes();
        made(200, "application/octet-stream", [&length[..], json.as_bytes(), &data].concat())
    }
}

/// The bytes that whole blocks of a file make, for a plan whose weights are made of blocks.
fn blocks(name: &str, blocks: &[u8]) -> Answer {
    let how = Derivation::named(name).filter(|how| blocks.len().is_multiple_of(how.block));
    let Some(how) = how else { return Answer::Refused(400, "there are no such blocks, or one is cut off") };
    let mut bytes = vec![0; blocks.len() / how.block * how.makes];
    (how.make)(blocks, &mut bytes);
    made(200, "application/octet-stream", bytes)
}

fn made(status: u16, kind: &'static str, bytes: Vec<u8>) -> Answer {
    Answer::Found { status, content: Content::Made(bytes), kind, policy: NOTHING.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(answer: Answer) -> (u16, Vec<u8>) {
        match answer {
            Answer::Found { status, content: Content::Made(bytes), .. } => (status, bytes),
            Answer::Found { .. } => panic!("not made"),
            Answer::Refused(status, why) => (status, why.into()),
        }
    }

    fn asked(request: &str, model: &[u8]) -> Vec<u8> {
        [&(request.len() as u32).to_le_bytes()[..], request.as_bytes(), model].concat()
    }

    /// The JSON of a last answer, and its data.
    fn whole(answer: &[u8]) -> (serde_json::Value, &[u8]) {
        let length = u32::from_le_bytes(*answer.first_chunk().unwrap()) as usize;
        (serde_json::from_slice(&answer[4..4 + length]).unwrap(), &answer[4 + length..])
    }

    #[test]
    fn files_are_read_piece_by_piece() {
        // A reshape reads its shape, which is in a file.
        let model = include_bytes!("../../../fixtures/small/attention/model.onnx");
        let jobs = Jobs::default();
        let (status, answer) = given(jobs.answer("compile", asked("{}", model)));
        assert_eq!(status, 200);
        let (json, _) = whole(&answer);
        assert!(json["plan"]["plans"].is_array(), "{json}");
        assert!(jobs.all.lock().unwrap().1.is_empty());
        let (status, answer) = given(jobs.answer("compile", asked("{}", b"no model")));
        assert_eq!(status, 200);
        assert!(whole(&answer).0["text"].as_str().unwrap().starts_with("error"));
    }

    #[test]
    fn requests_that_cannot_be_understood_are_refused() {
        let jobs = Jobs::default();
        for (path, body, status) in [
            ("compile", vec![], 400),
            ("compile", vec![9, 0, 0, 0, b'{'], 400),
            ("compile", vec![1, 0, 0, 0, 0xff], 400),
            ("compile/1", vec![], 404),
            ("compile/one", vec![], 404),
            ("other", vec![], 404),
            ("blocks/none", vec![], 400),
            ("blocks/q8_0_scales", vec![0; 33], 400),
            ("blocks/q8_0_scales", vec![0; 68], 200),
        ] {
            assert_eq!(given(jobs.answer(path, body)).0, status, "{path}");
        }
    }
}
