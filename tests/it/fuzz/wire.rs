//! Mutations of the protobuf wire format, without a schema: numbers become extreme, fields are dropped,
//! duplicated or moved between messages, strings are swapped, bytes are cut off.

use crate::data::Folder;
use std::path::Path;
use wgfc_ir::testing::Rng;

/// The payload of a field, parsed further where it looks like a message.
#[derive(Clone, Debug)]
enum Payload {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

#[derive(Clone, Debug)]
struct Field {
    number: u64,
    payload: Payload,
}

fn read_varint(b: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = b.split_first()?;
        *b = rest;
        v |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(v);
        }
    }
    None
}

fn parse(mut b: &[u8], depth: usize) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !b.is_empty() {
        let tag = read_varint(&mut b)?;
        let length = match tag & 7 {
            0 => {
                fields.push(Field { number: tag >> 3, payload: Payload::Varint(read_varint(&mut b)?) });
                continue;
            }
            1 => 8,
            5 => 4,
            2 => usize::try_from(read_varint(&mut b)?).ok()?,
            _ => return None,
        };
        if length > b.len() || tag >> 3 == 0 || tag >> 3 > 1000 {
            return None;
        }
        let (bytes, rest) = b.split_at(length);
        b = rest;
        let inner = if tag & 7 == 2 && depth > 0 && length > 1 { parse(bytes, depth - 1) } else { None };
        // Text or numbers may look like a message; they are taken for one only if re-encoding gives the same
        // bytes.
        let payload = match inner.filter(|fields| write(fields) == bytes) {
            Some(fields) => Payload::Message(fields),
            None if tag & 7 == 2 => Payload::Bytes(bytes.to_vec()),
            None => Payload::Fixed(bytes.to_vec()),
        };
        fields.push(Field { number: tag >> 3, payload });
    }
    Some(fields)
}

fn write_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = vec![];
    for f in fields {
        let (wire, bytes) = match &f.payload {
            Payload::Varint(v) => {
                write_varint(f.number << 3, &mut out);
                write_varint(*v, &mut out);
                continue;
            }
            Payload::Fixed(b) => (if b.len() == 8 { 1 } else { 5 }, b.clone()),
            Payload::Bytes(b) => (2, b.clone()),
            Payload::Message(m) => (2, write(m)),
        };
        write_varint(f.number << 3 | wire, &mut out);
        if wire == 2 {
            write_varint(bytes.len() as u64, &mut out);
        }
        out.extend(bytes);
    }
    out
}

const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    5,
    7,
    13,
    16,
    22,
    127,
    1 << 31,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

/// Changes one random place, found by descending from the root.
fn mutate(fields: &mut Vec<Field>, rng: &mut Rng, spare: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let i = rng.below(fields.len());
    if let Payload::Message(inner) = &mut fields[i].payload
        && !inner.is_empty()
        && !rng.one_in(6)
    {
        return mutate(inner, rng, spare);
    }
    match rng.below(7) {
        0 => drop(fields.remove(i)),
        1 => fields.push(fields[i].clone()),
        2 => {
            let j = rng.below(fields.len());
            let payload = fields[j].payload.clone();
            fields[i].payload = payload;
        }
        3 if !spare.is_empty() => {
            let other = spare[rng.below(spare.len())].clone();
            fields[i] = Field { number: fields[i].number, ..other };
        }
        4 => fields[i].number = 1 + rng.below(30) as u64,
        _ => match &mut fields[i].payload {
            Payload::Varint(v) => {
                *v = if rng.one_in(3) {
                    v.wrapping_add(*rng.pick(&[1, u64::MAX]).unwrap_or(&1))
                } else {
                    *rng.pick(&NUMBERS).unwrap_or(&0)
                }
            }
            Payload::Fixed(b) | Payload::Bytes(b) => match rng.below(3) {
                0 => b.truncate(rng.below(b.len() + 1)),
                1 => b.extend((0..rng.below(9)).map(|_| rng.bits() as u8)),
                _ if b.is_empty() => {}
                _ => {
                    let at = rng.below(b.len());
                    b[at] = rng.bits() as u8;
                }
            },
            Payload::Message(m) => m.reverse(),
        },
    }
}

/// Every field of every message, for insertion elsewhere.
fn flatten(fields: &[Field], out: &mut Vec<Field>) {
    for f in fields {
        out.push(f.clone());
        if let Payload::Message(m) = &f.payload {
            flatten(m, out);
        }
    }
}

pub fn mutated(model: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match parse(model, 12) {
        Some(mut fields) if !rng.one_in(8) => {
            let mut spare = vec![];
            flatten(&fields, &mut spare);
            for _ in 0..1 + rng.below(4) {
                mutate(&mut fields, rng, &spare);
            }
            write(&fields)
        }
        _ => model.to_vec(),
    };
    if rng.one_in(8) && !bytes.is_empty() {
        match rng.below(2) {
            0 => bytes.truncate(rng.below(bytes.len())),
            _ => {
                for _ in 0..1 + rng.below(8) {
                    let at = rng.below(bytes.len());
                    bytes[at] = rng.bits() as u8;
                }
            }
        }
    }
    bytes
}

#[test]
fn wire_format_round_trips() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small");
    for folder in Folder::all(&root) {
        let bytes = std::fs::read(folder.model_path()).expect("a fixture");
        assert_eq!(write(&parse(&bytes, 12).expect("protobuf")), bytes, "{}", folder.name);
    }
}
