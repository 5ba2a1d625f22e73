//! The elements of a tensor, and who accessed them.

use super::is_shared;
use crate::{Access, Space, Tensor, Write};
use wgfc_ir::Scalar;

/// An invocation at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    /// The workgroup's number, from 1.
    pub(super) group: u32,
    /// The number of the invocation in it.
    pub(super) lane: u32,
    /// The number of barriers before that concern storage, and of all barriers before.
    pub(super) phases: (u32, u32),
}

/// Stands for several workgroups or invocations.
const SEVERAL: u32 = u32::MAX;

/// The last accesses to an element.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    write: Option<(Write, At)>,
    read: Option<At>,
}

#[derive(Clone, Copy, Debug)]
struct At {
    group: u32,
    lane: u32,
    phase: u32,
}

/// The elements of a tensor: of registers those of the first invocation, then those of the second, ….
pub(super) struct Cells {
    space: Space,
    /// The elements of one invocation, or of all where these share them.
    pub(super) len: usize,
    elements: Vec<Scalar>,
    defined: Vec<bool>,
    touched: Vec<Touched>,
}

impl Cells {
    pub(super) fn new(t: &Tensor, len: usize, lanes: usize, given: Vec<Scalar>) -> Cells {
        let zero = Scalar { dtype: t.dtype, bits: 0 };
        match t.space {
            Space::Storage(_) => Cells {
                space: t.space,
                len,
                defined: vec![true; given.len()],
                touched: vec![Touched::default(); given.len()],
                elements: given,
            },
            space => {
                let all = len * if is_shared(space) { 1 } else { lanes };
                let touched = if is_shared(space) { vec![Touched::default(); all] } else { vec![] };
                Cells { space, len, elements: vec![zero; all], defined: vec![false; all], touched }
            }
        }
    }

    pub(super) fn is_storage(&self) -> bool {
        matches!(self.space, Space::Storage(_))
    }

    pub(super) fn into_elements(self) -> Vec<Scalar> {
        self.elements
    }

    /// Forgets what a workgroup left in memory that the next one does not share.
    pub(super) fn next_group(&mut self) {
        if !self.is_storage() {
            self.defined.fill(false);
            self.touched.fill(Touched::default());
        }
    }

    fn at(&self, who: Who) -> At {
        let phase = if self.is_storage() { who.phases.0 } else { who.phases.1 };
        At { group: who.group, lane: who.lane, phase }
    }

    fn place(&self, element: usize, who: Who) -> usize {
        if is_shared(self.space) { element } else { who.lane as usize * self.len + element }
    }

    pub(super) fn load(&mut self, element: usize, who: Who) -> Result<Scalar, String> {
        let (i, at) = (self.place(element, who), self.at(who));
        if self.space == Space::Storage(Access::Write) {
            return Err("reads a tensor that is only written".into());
        }
        let value = *self.elements.get(i).ok_or("reads outside of the tensor")?;
        if !self.defined[i] {
            return Err("reads an element before it is stored".into());
        }
        if let Some(t) = self.touched.get_mut(i) {
            if let Some((_, w)) = t.write {
                conflict(&w, &at).map_err(|who| format!("reads an element that {who} writes"))?;
            }
            t.read = Some(match t.read {
                None => at,
                Some(r) if r.group != at.group => At { group: SEVERAL, ..at },
                Some(r) if r.phase == at.phase && r.lane != at.lane => At { lane: SEVERAL, ..at },
                Some(_) => at,
            });
        }
        Ok(value)
    }

    /// Stores what `value` makes of the old element.
    pub(super) fn store(
        &mut self,
        element: usize,
        who: Who,
        write: Write,
        value: impl FnOnce(Scalar) -> Option<Scalar>,
    ) -> Result<(), String> {
        let (i, at) = (self.place(element, who), self.at(who));
        if self.space == Space::Storage(Access::Read) {
            return Err("writes a tensor that is only read".into());
        }
        let old = *self.elements.get(i).ok_or("writes outside of the tensor")?;
        if matches!(write, Write::Combine(_)) && !self.defined[i] {
            return Err("combines with an element before it is stored".into());
        }
        if let Some(t) = self.touched.get_mut(i) {
            if let Some((other, w)) = t.write
                && (other != write || write == Write::Replace)
            {
                conflict(&w, &at).map_err(|who| format!("writes an element that {who} writes too"))?;
            }
            if let Some(r) = t.read {
                conflict(&r, &at).map_err(|who| format!("writes an element that {who} reads"))?;
            }
            t.write = Some((write, at));
        }
        self.elements[i] = value(old).ok_or("combines values of different types")?;
        self.defined[i] = true;
        Ok(())
    }
}

/// Whether an access happens before another one, or in the same invocation; else who made it.
fn conflict(before: &At, now: &At) -> Result<(), &'static str> {
    if before.group != now.group {
        return Err("another workgroup");
    }
    if before.phase == now.phase && before.lane != now.lane {
        return Err("another invocation without a barrier between them");
    }
    Ok(())
}
