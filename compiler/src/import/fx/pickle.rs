//! A reader of the few pickle opcodes that `torch.save` writes for a dictionary of tensors. Nothing is executed: the functions that
//! rebuild tensors are recognised, and a pickle that names any other is refused.

use crate::Diagnostic;
use crate::budget::Budget;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// The maximum rank of a tensor, as in torch.
const RANK: usize = 64;
/// The maximum nesting depth of tuples.
const DEPTH: usize = 64;

/// A tensor: a view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The key of the storage, whose record is `data/KEY`.
    pub key: String,
    /// The class of the storage, which implies the element type: `FloatStorage`.
    pub class: String,
    /// The storage offset, in elements.
    pub offset: i64,
    /// Its shape.
    pub sizes: Vec<i64>,
    /// The strides, in elements.
    pub strides: Vec<i64>,
}

impl View {
    /// The approximate size in memory, in bytes.
    fn size(&self) -> usize {
        size_of::<View>() + self.key.len() + self.class.len() + 8 * (self.sizes.len() + self.strides.len())
    }
}

/// The reason why a pickle cannot be read.
struct Fault(Diagnostic);

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault(Diagnostic::model(message))
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Fault {
        Fault(Diagnostic::model(message))
    }
}

impl From<Diagnostic> for Fault {
    fn from(d: Diagnostic) -> Fault {
        Fault(d)
    }
}

#[derive(Clone, Debug)]
enum Item {
    None,
    Bool,
    Int(i64),
    Text(Rc<str>),
    /// A tuple and its nesting depth.
    Tuple(Rc<Vec<Item>>, usize),
    /// A dictionary, with its entries in insertion order.
    Dict(Rc<std::cell::RefCell<Vec<(Item, Item)>>>),
    Global(Rc<str>),
    Storage {
        key: Rc<str>,
        class: Rc<str>,
    },
    Tensor(Rc<View>),
    Mark,
}

/// The tensors of a pickled dictionary, by name.
///
/// # Errors
/// The reason why a file is refused: damaged, not understood, or too large for the memory budget.
pub fn tensors(bytes: &[u8], budget: &Budget) -> Result<BTreeMap<String, View>, Diagnostic> {
    dictionary(bytes, budget).map_err(|Fault(d)| d)
}

fn dictionary(bytes: &[u8], budget: &Budget) -> Result<BTreeMap<String, View>, Fault> {
    let mut m = Machine { bytes, at: 0, stack: vec![], memo: HashMap::new(), budget };
    let top = m.run()?;
    let Item::Dict(entries) = top else { return Err("the pickle does not hold a dictionary".into()) };
    let mut out = BTreeMap::new();
    for (k, v) in entries.borrow().iter() {
        match (k, v) {
            (Item::Text(k), Item::Tensor(t)) => {
                // Memory is taken for the entry of this table and for that of the importer's table.
                m.take_memory(2 * (128 + k.len() + t.size()))?;
                out.insert(k.to_string(), (**t).clone());
            }
            (Item::Text(k), _) => return Err(format!("`{k}` of the pickle is not a tensor").into()),
            _ => return Err("a key of the pickle is not a string".into()),
        }
    }
    Ok(out)
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    stack: Vec<Item>,
    memo: HashMap<u32, Item>,
    budget: &'b Budget,
}

impl Machine<'_> {
    fn take_memory(&self, bytes: usize) -> Result<(), Fault> {
        Ok(self.budget.take(bytes as u64, format_args!("reading {} bytes of a pickle", self.bytes.len()))?)
    }

    fn take(&mut self, n: usize) -> Result<&[u8], Fault> {
        let end =
            self.at.checked_add(n).filter(|e| *e <= self.bytes.len()).ok_or("the pickle is cut short")?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    /// Reads a little-endian unsigned integer of `n` bytes, at most eight.
    fn number(&mut self, n: usize) -> Result<u64, Fault> {
        Ok(self.take(n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    fn text(&mut self, n: usize) -> Result<Rc<str>, Fault> {
        self.take_memory(n + 16)?;
        std::str::from_utf8(self.take(n)?)
            .map(Rc::from)
            .map_err(|_| "a text of the pickle is not UTF-8".into())
    }

    fn line(&mut self) -> Result<String, Fault> {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().position(|b| *b == b'\n').ok_or("the pickle is cut short")?;
        let text = self.text(n)?;
        self.at += 1;
        Ok(text.to_string())
    }

    fn push(&mut self, i: Item) -> Result<(), Fault> {
        self.take_memory(size_of::<Item>())?;
        self.stack.push(i);
        Ok(())
    }

    fn pop(&mut self) -> Result<Item, Fault> {
        match self.stack.pop() {
            Some(Item::Mark) | None => Err("the pickle takes a value from an empty stack".into()),
            Some(i) => Ok(i),
        }
    }

    fn popped(&mut self, n: usize) -> Result<Vec<Item>, Fault> {
        let mut out = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        out.reverse();
        Ok(out)
    }

    fn until_mark(&mut self) -> Result<Vec<Item>, Fault> {
        let i = self.stack.iter().rposition(|i| matches!(i, Item::Mark)).ok_or("the pickle has no mark")?;
        let items = self.stack.split_off(i + 1);
        self.take_memory(size_of_val(&items[..]))?;
        self.stack.pop();
        Ok(items)
    }

    fn remember(&mut self, key: u32) -> Result<(), Fault> {
        let top = self.stack.last().cloned().ok_or("the pickle memoizes a value of an empty stack")?;
        self.take_memory(2 * size_of::<(u32, Item)>())?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), Fault> {
        let i = self.memo.get(&key).cloned().ok_or("the pickle reads a memo that it did not write")?;
        self.push(i)
    }

    fn run(&mut self) -> Result<Item, Fault> {
        loop {
            match self.number(1)? as u8 {
                0x80 => _ = self.take(1)?,
                0x95 => _ = self.take(8)?,
                b'.' => return self.pop(),
                b'(' => self.push(Item::Mark)?,
                b'}' => self.push(Item::Dict(Rc::default()))?,
                b')' => self.push(Item::Tuple(Rc::default(), 0))?,
                b'N' => self.push(Item::None)?,
                0x88 | 0x89 => self.push(Item::Bool)?,
                b'K' => {
                    let n = self.number(1)?;
                    self.push(Item::Int(n as i64))?;
                }
                b'M' => {
                    let n = self.number(2)?;
                    self.push(Item::Int(n as i64))?;
                }
                b'J' => {
                    let n = self.number(4)?;
                    self.push(Item::Int(i64::from(n as u32 as i32)))?;
                }
                // A two's-complement integer of up to eight bytes.
                0x8a => {
                    let n = self.number(1)? as usize;
                    if n > 8 {
                        return Err("an integer of the pickle has more than 64 bits".into());
                    }
                    let v = self.number(n)?;
                    let shift = 64 - 8 * n as u32;
                    self.push(Item::Int(if n == 0 { 0 } else { ((v << shift) as i64) >> shift }))?;
                }
                b'X' => {
                    let n = self.number(4)? as usize;
                    let t = self.text(n)?;
                    self.push(Item::Text(t))?;
                }
                0x8c => {
                    let n = self.number(1)? as usize;
                    let t = self.text(n)?;
                    self.push(Item::Text(t))?;
                }
                b'q' => {
                    let key = self.number(1)? as u32;
                    self.remember(key)?;
                }
                b'r' => {
                    let key = self.number(4)? as u32;
                    self.remember(key)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let key = self.number(1)? as u32;
                    self.recall(key)?;
                }
                b'j' => {
                    let key = self.number(4)? as u32;
                    self.recall(key)?;
                }
                b't' => {
                    let items = self.until_mark()?;
                    self.push(tuple(items)?)?;
                }
                n @ 0x85..=0x87 => {
                    let items = self.popped(usize::from(n - 0x84))?;
                    self.push(tuple(items)?)?;
                }
                b'c' => {
                    let name = format!("{}.{}", self.line()?, self.line()?);
                    self.push(Item::Global(name.into()))?;
                }
                0x93 => match &self.popped(2)?[..] {
                    [Item::Text(module), Item::Text(name)] => {
                        self.push(Item::Global(format!("{module}.{name}").into()))?;
                    }
                    _ => return Err("a name of the pickle is not a string".into()),
                },
                b'Q' => {
                    let id = self.pop()?;
                    let storage = storage(&id)?;
                    self.push(storage)?;
                }
                b'R' => match &self.popped(2)?[..] {
                    [Item::Global(function), Item::Tuple(args, _)] => {
                        let made = call(function, args)?;
                        if let Item::Tensor(t) = &made {
                            self.take_memory(t.size())?;
                        }
                        self.push(made)?;
                    }
                    _ => return Err("the pickle calls a value that is not a function".into()),
                },
                b'u' => {
                    let items = self.until_mark()?;
                    self.set(items)?;
                }
                b's' => {
                    let items = self.popped(2)?;
                    self.set(items)?;
                }
                // The state of an ordered dictionary besides its entries, `_metadata`, is dropped.
                b'b' => _ = self.pop()?,
                op => {
                    return Err(format!(
                        "opcode {op:#04x} of the pickle does not occur in dictionaries of tensors"
                    )
                    .into());
                }
            }
        }
    }

    fn set(&mut self, items: Vec<Item>) -> Result<(), Fault> {
        let Some(Item::Dict(d)) = self.stack.last() else {
            return Err("the pickle sets items of a value that is not a dictionary".into());
        };
        let mut items = items.into_iter();
        while let (Some(k), Some(v)) = (items.next(), items.next()) {
            // A value that is no tensor is kept as `None`: an error in the resulting dictionary, and irrelevant in others. A dictionary
            // is not stored in another, because a reference cycle would never be freed.
            if !matches!(v, Item::Dict(_) | Item::Mark) {
                self.take_memory(2 * size_of::<(Item, Item)>())?;
                let v = if matches!(v, Item::Tensor(_)) { v } else { Item::None };
                d.borrow_mut().push((if matches!(k, Item::Text(_)) { k } else { Item::None }, v));
            }
        }
        Ok(())
    }
}

fn tuple(items: Vec<Item>) -> Result<Item, Fault> {
    let depth = |i: &Item| if let Item::Tuple(_, depth) = i { *depth } else { 0 };
    let depth = 1 + items.iter().map(depth).max().unwrap_or(0);
    if depth > DEPTH {
        return Err(format!("tuples of the pickle are nested more than {DEPTH} deep").into());
    }
    Ok(Item::Tuple(Rc::new(items), depth))
}

/// Reads a persistent id: `('storage', torch.FloatStorage, '0', 'cpu', 15)`.
fn storage(id: &Item) -> Result<Item, Fault> {
    let Item::Tuple(id, _) = id else { return Err("a storage of the pickle is not a tuple".into()) };
    match &id[..] {
        [Item::Text(kind), Item::Global(class), Item::Text(key), ..] if &**kind == "storage" => {
            let class = class.rsplit('.').next().unwrap_or(class).into();
            Ok(Item::Storage { key: key.clone(), class })
        }
        _ => Err("a storage of the pickle is not understood".into()),
    }
}

fn call(function: &str, args: &[Item]) -> Result<Item, Fault> {
    match function {
        "collections.OrderedDict" => Ok(Item::Dict(Rc::default())),
        "torch._utils._rebuild_parameter" => match args {
            [t @ Item::Tensor(_), ..] => Ok(t.clone()),
            _ => Err("a parameter of the pickle is not a tensor".into()),
        },
        "torch._utils._rebuild_tensor_v2" => match args {
            [
                Item::Storage { key, class },
                Item::Int(offset),
                Item::Tuple(sizes, _),
                Item::Tuple(strides, _),
                ..,
            ] => {
                let numbers = |items: &[Item]| {
                    let number = |i: &Item| if let Item::Int(n) = i { Some(*n) } else { None };
                    items.iter().map(number).collect::<Option<Vec<i64>>>()
                };
                if sizes.len().max(strides.len()) > RANK {
                    return Err(format!("a tensor of the pickle has more than {RANK} axes").into());
                }
                let (Some(sizes), Some(strides)) = (numbers(sizes), numbers(strides)) else {
                    return Err("the shape of a tensor of the pickle holds no numbers".into());
                };
                let (key, class) = (key.to_string(), class.to_string());
                Ok(Item::Tensor(Rc::new(View { key, class, offset: *offset, sizes, strides })))
            }
            _ => Err("a tensor of the pickle is not understood".into()),
        },
        f => Err(format!("the pickle calls `{f}`, which is not executed").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<BTreeMap<String, View>, Diagnostic> {
        tensors(bytes, &Budget::new(bytes.len() as u64, None))
    }

    /// The pickle, in protocol 2, of `{'w': tensor of 2x3 elements in storage 0}`.
    fn sample() -> Vec<u8> {
        let mut b = b"\x80\x02}q\x00(X\x01\x00\x00\x00wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03".to_vec();
        b.extend(b"ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x06tq\x07QK\x00K\x02K\x03\x86q\x08");
        b.extend(b"K\x03K\x01\x86q\x09\x89ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0du.");
        b
    }

    #[test]
    fn a_dictionary_of_tensors_is_read() {
        let t = read(&sample()).unwrap();
        let w = View {
            key: "0".into(),
            class: "FloatStorage".into(),
            offset: 0,
            sizes: vec![2, 3],
            strides: vec![3, 1],
        };
        assert_eq!(t, BTreeMap::from([("w".to_owned(), w)]));
    }

    #[test]
    fn nothing_is_run_and_nothing_panics() {
        let evil = b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.";
        assert!(read(evil).unwrap_err().message.contains("`os.system`, which is not executed"));
        let mut deep = b"\x80\x02)".to_vec();
        deep.extend(std::iter::repeat_n(0x85, 1 << 20));
        assert!(read(&deep).unwrap_err().message.contains("nested more than"));
        let itself = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00\x85sh\x00.";
        assert!(read(itself).unwrap_err().message.contains("is not a tensor"));
        let good = sample();
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_err(), "{end}");
        }
        for i in 0..good.len() {
            for v in [0, 0x28, 0x52, 0x8a, 0xff] {
                let mut b = good.clone();
                b[i] = v;
                _ = read(&b);
            }
        }
    }

    #[test]
    fn tensors_have_few_axes_and_values_cost_memory() {
        let good = sample();
        // The tuple of the tensor's sizes gets many values: `(K K … t` in place of two.
        let at = good.windows(6).position(|w| w == b"K\x02K\x03\x86q").unwrap();
        let mut many = good[..at].to_vec();
        many.push(b'(');
        many.extend(b"K\x01".repeat(1000));
        many.push(b't');
        many.extend(&good[at + 5..]);
        assert!(read(&many).unwrap_err().message.contains("more than 64 axes"));
        let mut values = b"\x80\x02(".to_vec();
        values.extend(b"N".repeat(100_000));
        let e = tensors(&values, &Budget::new(10, Some(1 << 20))).unwrap_err();
        assert!(e.message.contains("reading 100003 bytes of a pickle would take"), "{e}");
    }
}
