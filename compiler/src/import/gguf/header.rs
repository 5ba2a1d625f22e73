//! The header of a GGUF file: metadata, and the names, types and places of its tensors.
//!
//! Nothing is copied: strings and arrays are slices of the file. All counts and lengths are compared with the bytes that are left.
//! The format is described in `docs/gguf.md` of the project ggml; versions 2 and 3 are alike but for the order of bytes, which is
//! little-endian here.

use std::collections::BTreeMap;

/// The first bytes of a file.
pub const MAGIC: &[u8] = b"GGUF";
/// The multiple of which offsets of tensors are, unless the metadata gives another one.
const ALIGNMENT: u64 = 32;
/// The maximum number of extents of a tensor.
const MOST_EXTENTS: u32 = 8;

/// A value of the metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'m> {
    /// An integer; those above the largest i64 are clamped.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(&'m str),
    /// A list of items of one type.
    List(List<'m>),
}

/// A list of the metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct List<'m> {
    kind: u32,
    count: usize,
    bytes: &'m [u8],
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The code of the type of its blocks.
    pub code: u32,
    /// The offset of its first byte in the file.
    pub offset: u64,
}

/// The header of a file.
#[derive(Clone, Debug, Default)]
pub struct Header<'m> {
    /// The metadata by key.
    pub items: BTreeMap<&'m str, Item<'m>>,
    /// The tensors by name.
    pub tensors: BTreeMap<&'m str, Entry>,
}

/// Bytes that have not been read yet.
struct Reader<'m> {
    all: &'m [u8],
    at: usize,
}

const CUT: &str = "the file ends within its header";

impl<'m> Reader<'m> {
    fn take(&mut self, n: u64) -> Result<&'m [u8], String> {
        let n = usize::try_from(n).ok().and_then(|n| self.at.checked_add(n));
        let bytes = n.and_then(|end| self.all.get(self.at..end)).ok_or(CUT)?;
        self.at += bytes.len();
        Ok(bytes)
    }
    fn number<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N as u64)?.try_into().map_err(|_| CUT.to_owned())
    }
    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.number()?))
    }
    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.number()?))
    }
    fn text(&mut self) -> Result<&'m str, String> {
        let len = self.u64()?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| "a text of its header is not UTF-8".to_owned())
    }

    /// An item of type `kind`, by the codes of the format.
    fn item(&mut self, kind: u32) -> Result<Item<'m>, String> {
        let int = |n: i128| Item::Int(n.min(i64::MAX.into()) as i64);
        Ok(match kind {
            0 => int(u8::from_le_bytes(self.number()?).into()),
            1 => int(i8::from_le_bytes(self.number()?).into()),
            2 => int(u16::from_le_bytes(self.number()?).into()),
            3 => int(i16::from_le_bytes(self.number()?).into()),
            4 => int(u32::from_le_bytes(self.number()?).into()),
            5 => int(i32::from_le_bytes(self.number()?).into()),
            6 => Item::Float(f32::from_le_bytes(self.number()?).into()),
            7 => Item::Bool(self.number::<1>()? != [0]),
            8 => Item::Text(self.text()?),
            9 => {
                let (kind, count) = (self.u32()?, self.u64()?);
                let start = self.at;
                match width(kind) {
                    Some(width) => drop(self.take(count.checked_mul(width).ok_or(CUT)?)?),
                    None if kind == 8 => {
                        for _ in 0..count {
                            self.text()?;
                        }
                    }
                    None => return Err(format!("a list of its header has items of type {kind}")),
                }
                let count = usize::try_from(count).map_err(|_| CUT)?;
                Item::List(List { kind, count, bytes: &self.all[start..self.at] })
            }
            10 => int(u64::from_le_bytes(self.number()?).into()),
            11 => int(i64::from_le_bytes(self.number()?).into()),
            12 => Item::Float(f64::from_le_bytes(self.number()?)),
            _ => return Err(format!("its header has an item of unknown type {kind}")),
        })
    }
}

/// The number of bytes of an item of a fixed size.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

impl<'m> List<'m> {
    /// The number of items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The items. Their encoding has been checked.
    pub fn items(&self) -> impl Iterator<Item = Item<'m>> + use<'m> {
        let (kind, mut reader) = (self.kind, Reader { all: self.bytes, at: 0 });
        (0..self.count).map_while(move |_| reader.item(kind).ok())
    }
}

impl<'m> Item<'m> {
    /// The number; `None` if it is none.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Item::Int(n) => Some(n as f64),
            Item::Float(x) => Some(x),
            _ => None,
        }
    }
    /// The integer; `None` if it is none.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Item::Int(n) => Some(n),
            _ => None,
        }
    }
    /// The text; `None` if it is none.
    pub fn as_text(self) -> Option<&'m str> {
        match self {
            Item::Text(t) => Some(t),
            _ => None,
        }
    }
}

impl<'m> Header<'m> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The fault of the file, as a predicate: "is cut short".
    pub fn read(file: &'m [u8]) -> Result<Header<'m>, String> {
        let mut r = Reader { all: file, at: 0 };
        if r.take(4)? != MAGIC {
            return Err("the file does not begin with the letters GGUF".into());
        }
        match r.u32()? {
            2 | 3 => {}
            v if v.swap_bytes() <= 3 => return Err("the file is for machines of the other byte order".into()),
            v => {
                return Err(format!(
                    "the file has version {v} of the format; versions 2 and 3 are supported"
                ));
            }
        }
        let (tensors, items) = (r.u64()?, r.u64()?);
        let mut header = Header::default();
        for _ in 0..items {
            let (key, kind) = (r.text()?, r.u32()?);
            let item = r.item(kind)?;
            if header.items.insert(key, item).is_some() {
                return Err(format!("its header has `{key}` twice"));
            }
        }
        for _ in 0..tensors {
            let (name, rank) = (r.text()?, r.u32()?);
            if rank > MOST_EXTENTS {
                return Err(format!("the tensor `{name}` has {rank} extents"));
            }
            let extents = (0..rank).map(|_| r.u64()).collect::<Result<Vec<u64>, String>>()?;
            let (code, offset) = (r.u32()?, r.u64()?);
            let far = |what: &str| format!("the tensor `{name}` has {what} that no file holds");
            let extents = extents.into_iter().rev().map(usize::try_from).collect::<Result<Vec<_>, _>>();
            let shape = extents.map_err(|_| far("an extent"))?;
            if header.tensors.insert(name, Entry { shape, code, offset }).is_some() {
                return Err(format!("two tensors are named `{name}`"));
            }
        }
        let alignment = match header.items.get("general.alignment") {
            Some(Item::Int(n)) if *n > 0 => *n as u64,
            Some(_) => return Err("`general.alignment` is no positive integer".into()),
            None => ALIGNMENT,
        };
        let data = (r.at as u64).checked_next_multiple_of(alignment);
        for (name, t) in &mut header.tensors {
            let offset = data.and_then(|d| d.checked_add(t.offset));
            t.offset =
                offset.ok_or_else(|| format!("the tensor `{name}` lies beyond the end of the file"))?;
        }
        Ok(header)
    }

    /// The text of a key.
    pub fn text(&self, key: &str) -> Option<&'m str> {
        self.items.get(key)?.as_text()
    }
    /// The integer of a key.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.items.get(key)?.as_i64()
    }
    /// The number of a key.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.items.get(key)?.as_f64()
    }
    /// The truth of a key.
    pub fn truth(&self, key: &str) -> Option<bool> {
        match self.items.get(key)? {
            Item::Bool(b) => Some(*b),
            _ => None,
        }
    }
    /// The list of a key.
    pub fn list(&self, key: &str) -> Option<List<'m>> {
        match self.items.get(key)? {
            Item::List(l) => Some(*l),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(to: &mut Vec<u8>, t: &str) {
        to.extend((t.len() as u64).to_le_bytes());
        to.extend(t.as_bytes());
    }

    /// A file with two items of metadata and one tensor of two f32.
    fn file() -> Vec<u8> {
        let mut f = b"GGUF\x03\0\0\0".to_vec();
        f.extend(1u64.to_le_bytes());
        f.extend(2u64.to_le_bytes());
        text(&mut f, "general.architecture");
        f.extend(8u32.to_le_bytes());
        text(&mut f, "llama");
        text(&mut f, "tokens");
        f.extend(9u32.to_le_bytes());
        f.extend(8u32.to_le_bytes());
        f.extend(2u64.to_le_bytes());
        text(&mut f, "a");
        text(&mut f, "é");
        text(&mut f, "w");
        f.extend(2u32.to_le_bytes());
        f.extend(2u64.to_le_bytes());
        f.extend(1u64.to_le_bytes());
        f.extend(0u32.to_le_bytes());
        f.extend(0u64.to_le_bytes());
        f.resize(f.len().next_multiple_of(32), 0);
        f.extend([1.0f32, 2.0].iter().flat_map(|x| x.to_le_bytes()));
        f
    }

    #[test]
    fn the_header_is_read() {
        let f = file();
        let h = Header::read(&f).unwrap();
        assert_eq!(h.text("general.architecture"), Some("llama"));
        let tokens: Vec<Item> = h.list("tokens").unwrap().items().collect();
        assert_eq!(tokens, [Item::Text("a"), Item::Text("é")]);
        assert_eq!(h.tensors["w"], Entry { shape: vec![1, 2], code: 0, offset: f.len() as u64 - 8 });
        assert_eq!((h.int("tokens"), h.float("nothing"), h.truth("tokens")), (None, None, None));
    }

    #[test]
    fn spoiled_files_are_errors() {
        let f = file();
        for end in 0..f.len() - 40 {
            assert!(Header::read(&f[..end]).is_err(), "{end}");
        }
        // Any byte may be wrong: the result is an error or a header, never a panic.
        for at in 0..f.len() {
            for b in [0, 1, 0x7f, 0xff] {
                let mut g = f.clone();
                g[at] = b;
                if let Ok(h) = Header::read(&g) {
                    h.items.values().for_each(|i| {
                        if let Item::List(l) = i {
                            assert!(l.items().count() <= l.len());
                        }
                    });
                }
            }
        }
        let e = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut g = file();
            change(&mut g);
            Header::read(&g).unwrap_err()
        };
        assert!(e(&|g| g[4] = 1).contains("version 1"));
        assert!(e(&|g| g[4..8].copy_from_slice(&[0, 0, 0, 3])).contains("byte order"));
        assert!(e(&|g| g[0] = b'X').contains("letters GGUF"));
    }
}
