//! The runs of sequences in pages.

use super::super::sequence::{Flight, Layout};
use super::super::{Generated, SequenceId, limits_of};
use super::pages::{Page, UNUSED};
use super::{PAGE, Paged, Sequence};
use crate::generate::choose::{self, Choice, Limits};
use crate::generate::{head, no_output, stepwise};
use crate::model::device_error;
use crate::{Error, Problem, Tensor};
use std::collections::{BTreeSet, HashMap};
use wgfc_ir::DType;
use wgfc_runtime::session::Value;
use wgfc_runtime::{DeviceTensor, Session};

/// The rows of a run, and their tokens.
struct Rows {
    /// The sequence of each row.
    layout: Layout,
    /// The sequence of each row whose next token the run chooses.
    choosing: Layout,
    /// The tokens on the device, if some of them are not known on the host. Without them, the rows take their pending ones.
    device: Option<DeviceTensor>,
}

impl Paged {
    /// Starts the next run, and returns whether there is one. Tokens that had to be read meanwhile, and sequences that end because no token can follow, are added to `all`.
    pub(super) fn start(&mut self, all: &mut Vec<Generated>) -> Result<bool, Error> {
        let parted = |s: &&Sequence| s.pending().len() > 1;
        let prompt = self.prompts.as_ref().and_then(|_| self.sequences.iter().find(parted)).map(|s| s.id);
        let generate = self.sequences.iter().any(|s| self.takes_a_token(s));
        if let Some(id) = prompt.filter(|_| !(self.after_prompt && generate)) {
            self.after_prompt = true;
            if self.start_prompt(id, all)? {
                return Ok(true);
            }
        }
        self.after_prompt = false;
        if generate { self.start_tokens(all) } else { Ok(false) }
    }

    /// Whether a sequence takes part in a run of one token of each.
    fn takes_a_token(&self, s: &Sequence) -> bool {
        match s.pending().len() {
            // The token that it takes is being chosen, and is not its last one.
            0 => s.left > 1,
            1 => true,
            _ => self.prompts.is_none(),
        }
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, Error> {
        self.find(id).map(|i| &self.sequences[i]).ok_or_else(gone)
    }

    /// Makes sure that a sequence has pages for `tokens` more tokens, and returns false if it has to wait. If there are no pages, and no
    /// run is to be read, the sequence that joined last gives its pages back.
    fn has_room(&mut self, id: SequenceId, tokens: usize) -> Result<bool, Error> {
        loop {
            let s = self.sequence(id)?;
            if s.place.pages.len() * PAGE >= s.fed + tokens {
                return Ok(true);
            }
            let Some(page) = self.page()? else { break };
            let i = self.find(id).ok_or_else(gone)?;
            self.sequences[i].place.pages.push(page);
        }
        if !self.flights.is_empty() {
            return Ok(false);
        }
        let holding = || self.sequences.iter().filter(|s| !s.place.pages.is_empty() || s.id == id);
        if holding().count() < 2 {
            let positions = self.pages.count() * PAGE;
            return Err(Error::Device(Problem::with_help(
                format!("the device has no memory for more than {positions} positions of the cache"),
                "give shorter prompts, ask for fewer tokens, or keep the cache in fewer bits (--cache q8)",
            )));
        }
        let last = holding().next_back().and_then(|s| self.find(s.id));
        if let Some(s) = last.map(|i| &mut self.sequences[i]) {
            self.pages.release(&mut s.place);
            self.recomputed += u64::from(s.fed > 0);
            s.fed = 0;
        }
        Ok(false)
    }

    /// A page that no sequence holds. The pool grows while most of its pages are held.
    fn page(&mut self) -> Result<Option<Page>, Error> {
        let count = self.pages.count();
        if 2 * (self.pages.held() + 1) >= count && count < self.limit {
            self.all_in_use()?;
            let session = &mut self.widths[0].session;
            let sizes = [2 * count, count + count.div_ceil(8)].map(|n| n.min(self.limit));
            match sizes.into_iter().find(|n| session.grow_blocking(*n).is_ok()) {
                Some(n) => self.pages.grow(n),
                // The pages that there are have to do.
                None => self.limit = count,
            }
        }
        Ok(self.pages.take())
    }

    /// Tells the states that all pages are in use, so that they are copied when the pool grows.
    pub(super) fn all_in_use(&mut self) -> Result<(), Error> {
        let session = &mut self.widths[0].session;
        let growths = session.program().states.iter().filter_map(|s| s.growth.as_ref());
        let lengths: BTreeSet<String> = growths.map(|g| g.length.clone()).collect();
        let count = i64::try_from(self.pages.count()).unwrap_or(i64::MAX);
        lengths.iter().try_for_each(|length| session.set_symbol(length, count).map_err(device_error))
    }

    /// Starts the run of the next part of a prompt.
    fn start_prompt(&mut self, id: SequenceId, all: &mut Vec<Generated>) -> Result<bool, Error> {
        let pending = self.sequence(id)?.pending().len();
        let n = pending.min(self.chunk);
        if !self.has_room(id, n)? {
            return Ok(false);
        }
        let choosing = vec![(n == pending).then_some(id)];
        self.launch(&Rows { layout: vec![Some(id)], choosing, device: None }, n, all)?;
        Ok(true)
    }

    /// Starts the run of one token of each sequence that has or will have one.
    fn start_tokens(&mut self, all: &mut Vec<Generated>) -> Result<bool, Error> {
        let taking: Vec<&Sequence> = self.sequences.iter().filter(|s| self.takes_a_token(s)).collect();
        let rows = self.rows_for(taking.len());
        let mut layout: Layout = taking.iter().map(|s| Some(s.id)).collect();
        let mut choosing: Layout = taking.iter().map(|s| (s.pending().len() <= 1).then_some(s.id)).collect();
        layout.resize(rows, None);
        choosing.resize(rows, None);
        let device = self.tokens_on_device(&layout)?;
        for id in layout.iter().flatten() {
            if !self.has_room(*id, 1)? {
                return Ok(false);
            }
        }
        self.launch(&Rows { layout, choosing, device }, 1, all)?;
        Ok(true)
    }

    /// The tokens of rows, if some of them are those that runs choose which have not been read.
    fn tokens_on_device(&self, layout: &Layout) -> Result<Option<DeviceTensor>, Error> {
        let chosen = |f: &Flight| f.started.output(head::TOKEN).cloned().ok_or_else(no_output);
        if let Some(last) = self.flights.back().filter(|f| f.rows == *layout) {
            return chosen(last).map(Some);
        }
        let places = self.flights.iter().flat_map(|f| f.rows.iter().enumerate().map(move |at| (f, at)));
        let places: HashMap<SequenceId, (&Flight, usize)> =
            places.filter_map(|(f, (row, id))| Some(((*id)?, (f, row)))).collect();
        let (mut known, mut unread) = (vec![], vec![]);
        for (to, id) in layout.iter().enumerate() {
            let s = id.map(|id| self.sequence(id)).transpose()?;
            let pending = s.and_then(|s| s.pending().first());
            known.push(pending.copied().unwrap_or(0));
            if let (Some(s), None) = (s, pending) {
                let (flight, row) = places.get(&s.id).ok_or_else(no_output)?;
                unread.push((chosen(flight)?, *row, to));
            }
        }
        if unread.is_empty() {
            return Ok(None);
        }
        let tokens = Tensor::from_i64(vec![known.len(), 1], &known);
        let tokens = self.widest().session.gpu().upload_blocking(&tokens).map_err(device_error)?;
        let rows: Vec<_> = unread.iter().map(|(from, row, to)| (from, *row, *to)).collect();
        tokens.copy_rows_blocking(&rows).map_err(device_error)?;
        Ok(Some(tokens))
    }

    /// The rows of the smallest program for this many sequences.
    fn rows_for(&self, sequences: usize) -> usize {
        let fits = self.widths.iter().find(|w| w.rows >= sequences);
        fits.unwrap_or(self.widest()).rows
    }

    /// Starts a run of `n` tokens of each row, and the choice of the next tokens.
    fn launch(&mut self, rows: &Rows, n: usize, all: &mut Vec<Generated>) -> Result<(), Error> {
        let mut given: Vec<(&str, Value)> = self.inputs(rows, n)?.into();
        let choices =
            || rows.choosing.iter().flatten().filter_map(|id| Some(&self.sequence(*id).ok()?.choice));
        let (limits, needs_tokens) = (limits_of(choices()), choices().any(Choice::needs_tokens));
        let mut words = vec![];
        for (id, chooses) in rows.layout.iter().zip(&rows.choosing) {
            let Some(s) = id.and_then(|id| self.find(id)).map(|i| &mut self.sequences[i]) else {
                words.push(Default::default());
                continue;
            };
            s.fed += n;
            let processed = s.processed();
            self.pages.keep(&mut s.place, &s.tokens[..processed]);
            let draws = chooses.is_some() && limits.is_some() && !needs_tokens;
            words.push(if draws { s.choice.row() } else { Default::default() });
        }
        let width = self.widths.iter_mut().find(|w| w.rows >= rows.layout.len()).ok_or_else(no_output)?;
        let session = match &mut self.prompts {
            Some(s) if n > 1 => s,
            _ => &mut width.session,
        };
        if needs_tokens {
            given.push((head::CHOICE, choose::greedy().into()));
            let logits = logits(session, &given)?;
            // The choice depends on the tokens before.
            while let Some(flight) = self.flights.pop_front() {
                all.extend(self.read(flight)?);
            }
            return self.pick(logits, rows, all);
        }
        if rows.choosing.iter().all(Option::is_none) {
            given.push((head::CHOICE, choose::greedy().into()));
            session.run_on_device_blocking(&given).map_err(device_error)?;
            return Ok(());
        }
        let (words, limits) = match limits {
            None => (choose::greedy(), Limits::default()),
            Some(limits) => (choose::rows(&words), limits),
        };
        width.chooser.prepare(limits)?;
        let own = if limits == Limits::default() { words.clone() } else { choose::greedy() };
        given.push((head::CHOICE, own.into()));
        let started = width.chooser.chosen(session, limits, &given, words, &[head::TOKEN])?;
        self.flights.push_back(Flight { started, rows: rows.choosing.clone(), logprobs: None });
        Ok(())
    }

    /// The inputs of a run of `n` tokens of each row.
    fn inputs(&self, rows: &Rows, n: usize) -> Result<[(&'static str, Value); 3], Error> {
        let (mut ids, mut positions, mut tables) = (vec![], vec![], vec![]);
        for id in &rows.layout {
            let Some(id) = id else {
                ids.resize(ids.len() + n, 0);
                positions.extend(0..n as i64);
                tables.push(&[][..]);
                continue;
            };
            let s = self.sequence(*id)?;
            ids.extend(s.pending().iter().copied().chain(std::iter::repeat(0)).take(n));
            positions.extend((s.fed..s.fed + n).map(|p| p as i64));
            tables.push(&s.place.pages[..(s.fed + n).div_ceil(PAGE)]);
        }
        let count = rows.layout.len();
        let blocks = tables.iter().map(|t| t.len()).max().unwrap_or(0).max(1);
        // Blocks beyond the end of a sequence are read and hidden: they are its own, which hold numbers.
        let table = tables.iter().flat_map(|t| {
            let own = t.first().copied().unwrap_or(UNUSED);
            t.iter().copied().chain(std::iter::repeat(own)).take(blocks)
        });
        let table: Vec<u8> = table.flat_map(|page| page.to_le_bytes()).collect();
        let table = Tensor::new(DType::I32, vec![count, blocks], table).map_err(Error::Internal)?;
        let ids = match &rows.device {
            Some(token) => token.clone().into(),
            None => Tensor::from_i64(vec![count, n], &ids).into(),
        };
        let positions = Tensor::from_i64(vec![count, n], &positions);
        Ok([("input_ids", ids), ("position_ids", positions.into()), ("block_table", table.into())])
    }

    /// Starts the choice of the next tokens from logits. All tokens so far are known.
    fn pick(&mut self, logits: DeviceTensor, rows: &Rows, all: &mut Vec<Generated>) -> Result<(), Error> {
        // Some may have ended by the tokens that have just been read.
        let mut layout = rows.choosing.clone();
        for id in &mut layout {
            let Some(i) = id.and_then(|id| self.find(id)) else {
                *id = None;
                continue;
            };
            let s = &mut self.sequences[i];
            if let Err(e) = s.choice.prepare() {
                let sequence = s.id;
                all.push(Generated { sequence, token: Err(e), logprobs: None, end: None });
                self.leave(sequence);
                *id = None;
            }
        }
        let rows: HashMap<SequenceId, usize> =
            layout.iter().enumerate().filter_map(|(row, id)| Some(((*id)?, row))).collect();
        let choosing = || self.sequences.iter().filter(|s| rows.contains_key(&s.id));
        if rows.is_empty() {
            return Ok(());
        }
        let limits = limits_of(choosing().map(|s| &s.choice)).unwrap_or_else(Limits::rows);
        let reports = choosing().any(|s| s.logprobs.is_some());
        let mut choices: Vec<Option<&mut Choice>> = layout.iter().map(|_| None).collect();
        for s in &mut self.sequences {
            if let Some(row) = rows.get(&s.id) {
                choices[*row] = Some(&mut s.choice);
            }
        }
        let pick = stepwise::Pick::of(&mut choices, limits)?;
        let width = self.widths.iter_mut().find(|w| w.rows >= layout.len()).ok_or_else(no_output)?;
        let started = width.chooser.pick(logits.clone().into(), pick, &[head::TOKEN])?;
        let logprobs = match reports {
            true => {
                let token = started.output(head::TOKEN).ok_or_else(no_output)?.clone();
                Some(width.chooser.start_logprobs(logits, token)?)
            }
            false => None,
        };
        self.flights.push_back(Flight { started, rows: layout, logprobs });
        Ok(())
    }
}

fn gone() -> Error {
    Error::Internal("a sequence that has ended".into())
}

/// Starts a run, and returns its logits.
fn logits(session: &mut Session, given: &[(&str, Value)]) -> Result<DeviceTensor, Error> {
    let made = session.run_on_device_blocking(given).map_err(device_error)?;
    let logits = made.into_iter().find(|(n, _)| n == head::LOGITS).ok_or_else(no_output)?;
    Ok(logits.1)
}
