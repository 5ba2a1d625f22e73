//! Validation of a [`Program`], which may come from a file that was edited.
//!
//! After this check all indices in the program are valid. All errors are reported at once.

use crate::platform;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_program::program::{Access, BufferKind, Dispatch, Kernel, Port, State};
use wgfc_program::{Atom, DType, Dim, Program};

/// The largest nesting depth of repeats.
const NESTED: usize = 8;

/// The messages of all inconsistencies of the plan; empty for a valid program.
///
/// ```
/// use wgfc_runtime::{check::check, testing};
/// let mut program = testing::doubling();
/// assert!(check(&program).is_empty());
/// program.dispatches[0].kernel = 7;
/// assert!(!check(&program).is_empty());
/// ```
pub fn check(p: &Program) -> Vec<String> {
    let mut c = Check { p, errors: Vec::new() };
    c.symbols();
    c.computed();
    c.ports();
    c.buffers();
    c.states();
    for (i, k) in p.kernels.iter().enumerate() {
        c.kernel(i, k);
    }
    for i in 0..p.dispatches.len() {
        c.dispatch(i);
    }
    c.repeats();
    c.errors
}

/// The number of inputs' extents that use each symbol.
type Uses = BTreeMap<Arc<str>, usize>;

struct Check<'a> {
    p: &'a Program,
    errors: Vec<String>,
}

impl Check<'_> {
    fn fail(&mut self, message: String) {
        self.errors.push(message);
    }

    fn dim(&mut self, what: &str, d: &Dim) {
        for s in d.symbols() {
            if !self.p.symbols.iter().any(|k| **k == *s) {
                self.fail(format!("{what}: `{d}` uses `{s}`, which is not among the symbols"));
            }
        }
        if !d.vars().is_empty() || !d.data().is_empty() {
            self.fail(format!("{what}: `{d}` is not an expression over symbols"));
        }
    }

    fn states(&mut self) {
        let mut names = BTreeSet::new();
        for s in &self.p.states {
            let at = format!("state \"{}\"", s.name);
            if !names.insert(&s.name) {
                self.fail(format!("{at} is listed twice"));
            }
            let room = s.growth.as_ref().map(|g| g.axis);
            let mut sizes = vec![];
            for (d, extent) in s.shape.iter().enumerate() {
                self.dim(&at, extent);
                let open = Some(d) == room && matches!(extent.as_atom(), Some(Atom::Sym(_)));
                match extent.as_const().map(usize::try_from) {
                    Some(Ok(n)) => sizes.push(n),
                    None if open => {}
                    _ => self.fail(format!("{at}: its extent {d} is `{extent}`, which is no size")),
                }
            }
            if wgfc_program::tensor::checked_numel(&sizes).and_then(|n| i64::try_from(n).ok()).is_none() {
                self.fail(format!("{at} is too large"));
                continue;
            }
            match self.p.buffers.get(s.buffer) {
                Some(b) if matches!(&b.kind, BufferKind::State { name } if *name == s.name) => {
                    if b.elements != s.shape.iter().product() || b.dtype != s.dtype {
                        self.fail(format!("{at}: buffer {} has another size or type", s.buffer));
                    }
                }
                _ => self.fail(format!("{at}: buffer {} is not its own", s.buffer)),
            }
            self.initial(&at, s, &sizes);
            let Some(g) = &s.growth else { continue };
            if g.axis >= s.shape.len() {
                self.fail(format!("{at}: it has no axis {}", g.axis));
            }
            self.dim(&at, &Dim::sym(&g.length));
            self.dim(&at, &g.by);
        }
    }

    /// Checks the initial contents of a state with these extents.
    fn initial(&mut self, at: &str, s: &State, sizes: &[usize]) {
        let Some(name) = &s.initial else { return };
        if s.growth.is_some() {
            self.fail(format!("{at} grows and has initial contents, where it must begin empty"));
        }
        match self.p.weights.get(name) {
            None => self.fail(format!("{at}: the weight \"{name}\" of its initial contents is missing")),
            Some(w) if w.dtype != s.dtype || w.numel() != sizes.iter().product() => {
                self.fail(format!("{at} is {}{sizes:?}, its initial contents \"{name}\" are {w:?}", s.dtype));
            }
            Some(_) => {}
        }
    }

    fn symbols(&mut self) {
        let distinct: BTreeSet<_> = self.p.symbols.iter().collect();
        if distinct.len() != self.p.symbols.len() {
            self.fail("a symbol is listed twice".to_owned());
        }
        for s in &self.p.symbols {
            let named = Dim::parse(s).is_ok_and(|d| matches!(d.as_atom(), Some(Atom::Sym(n)) if **n == **s));
            if !named {
                self.fail(format!("`{}` cannot be a symbol's name", s.escape_debug()));
            }
        }
        for (i, c) in self.p.constraints.iter().enumerate() {
            self.dim(&format!("constraint {i}"), &c.a);
            self.dim(&format!("constraint {i}"), &c.b);
        }
    }

    fn computed(&mut self) {
        let p = self.p;
        let mut before = 0;
        for c in &p.computed {
            let at = format!("symbol `{}`", c.symbol);
            self.dim(&at, &Dim::sym(&c.symbol));
            self.size(&at, &c.bound);
            if c.after < before || c.after > p.dispatches.len() {
                self.fail(format!("{at} is computed by dispatch {}, out of order", c.after));
            }
            before = c.after;
            match p.buffers.get(c.buffer) {
                None => self.fail(format!("{at}: there is no buffer {}", c.buffer)),
                Some(b) if !matches!(b.dtype, DType::I32 | DType::I64) || b.elements.is(0) => {
                    self.fail(format!("{at}: buffer {} does not hold an integer", c.buffer));
                }
                Some(b) => {
                    if let BufferKind::Arena { first, last, .. } = b.kind
                        && !(first + 1..=last + 1).contains(&c.after)
                    {
                        self.fail(format!("{at}: buffer {} lives only from {first} to {last}", c.buffer));
                    }
                }
            }
        }
    }

    /// Checks a size that must be known before a run.
    fn size(&mut self, what: &str, d: &Dim) {
        self.dim(what, d);
        if let Some(s) = crate::bind::computed(self.p, &[d]) {
            self.fail(format!("{what}: `{d}` uses `{s}`, which is known only during a run"));
        }
    }

    fn ports(&mut self) {
        let mut uses = Uses::new();
        for s in self.p.inputs.iter().flat_map(|p| &p.shape).flat_map(Dim::symbols) {
            *uses.entry(s).or_default() += 1;
        }
        for (what, ports) in [("input", &self.p.inputs), ("output", &self.p.outputs)] {
            let mut names = BTreeSet::new();
            for (i, port) in ports.iter().enumerate() {
                let at = format!("{what} \"{}\"", port.name);
                if !names.insert(&port.name) {
                    self.fail(format!("{at} is listed twice"));
                }
                for d in &port.shape {
                    if what == "input" { self.size(&at, d) } else { self.dim(&at, d) }
                }
                if let Some(full) = &port.broadcast {
                    self.optional(what, &at, port, full, &uses);
                }
                let Some(b) = self.p.buffers.get(port.buffer) else {
                    self.fail(format!("{at}: there is no buffer {}", port.buffer));
                    continue;
                };
                let mine = match b.kind {
                    BufferKind::Input { index } => what == "input" && index == i,
                    BufferKind::Output { index } => what == "output" && index == i,
                    _ => false,
                };
                if !mine {
                    self.fail(format!("{at}: buffer {} is not the one of {what} {i}", port.buffer));
                }
                if b.dtype != port.dtype {
                    self.fail(format!("{at} is {}, its buffer {} is {}", port.dtype, port.buffer, b.dtype));
                }
                let n = port.shape.iter().fold(Dim::ONE, |n, d| &n * d);
                if n != b.elements && crate::bind::computed(self.p, &[&n]).is_none() {
                    self.fail(format!(
                        "{at} has {n} elements, its buffer {} has {}",
                        port.buffer, b.elements
                    ));
                }
            }
        }
    }

    fn optional(&mut self, what: &str, at: &str, port: &Port, full: &[Dim], uses: &Uses) {
        if what != "input" {
            self.fail(format!("{at} is broadcast, which only an input is"));
        }
        if full.len() != port.shape.len() || full.is_empty() {
            let (own, full) = (port.shape.len(), full.len());
            self.fail(format!("{at} has {own} axes and is broadcast to {full}"));
        }
        for d in full {
            self.size(at, d);
        }
        let own = |d: &Dim| match d.as_atom() {
            Some(Atom::Sym(s)) => uses.get(s) == Some(&1),
            _ => false,
        };
        if !port.shape.iter().all(own) {
            self.fail(format!("{at} can be left out, and its extents are not symbols of its own"));
        }
    }

    fn buffers(&mut self) {
        let p = self.p;
        for (i, b) in p.buffers.iter().enumerate() {
            let at = format!("buffer {i}");
            self.size(&at, &b.elements);
            match &b.kind {
                BufferKind::Input { index } => {
                    if p.inputs.get(*index).map(|q| q.buffer) != Some(i) {
                        self.fail(format!("{at} is for input {index}, which does not use it"));
                    }
                }
                BufferKind::Output { index } => {
                    if p.outputs.get(*index).map(|q| q.buffer) != Some(i) {
                        self.fail(format!("{at} is for output {index}, which does not use it"));
                    }
                }
                BufferKind::Weight { name } => match p.weights.get(name) {
                    None => self.fail(format!("{at}: the weight \"{name}\" is missing")),
                    Some(w) => {
                        let n = i64::try_from(w.numel()).ok();
                        if b.dtype != w.dtype || n != b.elements.as_const() {
                            self.fail(format!(
                                "{at} has {} × {}, the weight \"{name}\" is {w:?}",
                                b.elements, b.dtype
                            ));
                        }
                    }
                },
                BufferKind::Arena { arena, first, last } => {
                    if first > last || *last >= p.dispatches.len() {
                        self.fail(format!(
                            "{at} lives from dispatch {first} to {last} of {}",
                            p.dispatches.len()
                        ));
                    }
                    if *arena >= p.buffers.len() {
                        self.fail(format!("{at}: arena {arena} is more than there are buffers"));
                    }
                }
                BufferKind::State { name } => {
                    let listed = p.states.iter().any(|s| s.name == *name);
                    if !listed && b.elements.as_const().is_none() {
                        self.fail(format!(
                            "{at}: the size of state \"{name}\" must be a number, not `{}`",
                            b.elements
                        ));
                    }
                }
            }
        }
    }

    fn kernel(&mut self, i: usize, k: &Kernel) {
        let at = format!("kernel {i} (`{}`)", k.name);
        if k.wgsl.trim().is_empty() {
            self.fail(format!("{at} has no text"));
            return;
        }
        if k.workgroup_size.contains(&0) {
            self.fail(format!("{at}: its workgroup size {:?} has a zero", k.workgroup_size));
        }
        for message in platform::check_text(k) {
            self.fail(format!("{at}: {message}"));
        }
    }

    fn repeats(&mut self) {
        for (i, r) in self.p.repeats.iter().enumerate() {
            let at = format!("repeat {i}");
            self.dim(&at, &r.times);
            let end = r.first.checked_add(r.count).filter(|e| r.count > 0 && *e <= self.p.dispatches.len());
            let Some(end) = end else {
                self.fail(format!(
                    "{at}: dispatches {} and the {} behind are not all there",
                    r.first, r.count
                ));
                continue;
            };
            if let Some(u) = &r.until {
                if u.rounds == 0 {
                    self.fail(format!("{at} may run no round"));
                }
                let writes = |d: &Dispatch| {
                    let kernel = self.p.kernels.get(d.kernel);
                    let accesses = kernel.into_iter().flat_map(|k| &k.bindings);
                    d.bindings.iter().zip(accesses).any(|(b, a)| *b == u.buffer && *a == Access::ReadWrite)
                };
                if !self.p.dispatches[r.first..end].iter().any(writes) {
                    self.fail(format!(
                        "{at}: none of its dispatches writes buffer {}, which ends it",
                        u.buffer
                    ));
                }
            }
            // A repeat must come after each earlier one or lie inside it.
            let mut around = 0;
            for (j, o) in self.p.repeats[..i].iter().enumerate() {
                let their = o.first.saturating_add(o.count);
                around += usize::from(r.first < their);
                if r.first < o.first || r.first < their && end > their {
                    self.fail(format!("{at} overlaps repeat {j}, which comes before"));
                }
            }
            if around > NESTED {
                self.fail(format!("{at} is inside of {around} others, at most {NESTED}"));
            }
        }
    }

    fn dispatch(&mut self, i: usize) {
        let p = self.p;
        let d = &p.dispatches[i];
        let Some(k) = p.kernels.get(d.kernel) else {
            self.fail(format!("dispatch {i}: there is no kernel {}", d.kernel));
            return;
        };
        let at = format!("dispatch {i} (kernel `{}`)", k.name);
        for w in &d.workgroups {
            self.size(&at, w);
        }
        if d.bindings.len() != k.bindings.len() {
            self.fail(format!(
                "{at} binds {} buffers, the kernel has {}",
                d.bindings.len(),
                k.bindings.len()
            ));
            return;
        }
        let mut read: BTreeMap<Place, usize> = BTreeMap::new();
        let mut written: BTreeMap<Place, usize> = BTreeMap::new();
        let mut written_buffers = BTreeSet::new();
        for (access, &b) in k.bindings.iter().zip(&d.bindings) {
            let Some(buffer) = p.buffers.get(b) else {
                self.fail(format!("{at}: there is no buffer {b}"));
                continue;
            };
            if let BufferKind::Arena { first, last, .. } = buffer.kind
                && !(first..=last).contains(&i)
            {
                self.fail(format!("{at}: buffer {b} lives only from dispatch {first} to {last}"));
            }
            let place = place(b, &buffer.kind);
            match access {
                Access::Read => {
                    read.insert(place, b);
                }
                Access::ReadWrite => {
                    if matches!(buffer.kind, BufferKind::Weight { .. } | BufferKind::Input { .. }) {
                        self.fail(format!("{at} writes buffer {b}, which is an input or a weight"));
                    }
                    if !written_buffers.insert(b) {
                        self.fail(format!("{at} binds buffer {b} for writing twice"));
                    }
                    written.insert(place, b);
                }
            }
        }
        for (place, r) in &read {
            if let Some(w) = written.get(place) {
                self.fail(format!("{at} reads buffer {r} and writes buffer {w}, which share memory"));
            }
        }
    }
}

/// The memory of a buffer. Buffers with equal places may share memory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Place<'a> {
    Own(usize),
    Arena(usize),
    Named(&'a str),
}

fn place(i: usize, kind: &BufferKind) -> Place<'_> {
    match kind {
        BufferKind::Arena { arena, .. } => Place::Arena(*arena),
        BufferKind::Weight { name } | BufferKind::State { name } => Place::Named(name),
        BufferKind::Input { .. } | BufferKind::Output { .. } => Place::Own(i),
    }
}
