//! Estimates the memory of a model's decoded messages: an empty message has two bytes in the file and hundreds in memory.
//!
//! The estimate uses the wire format alone: tags, lengths, and which fields are messages. It allocates nothing, and it ends at damaged
//! bytes, which the decoder reports.

use super::messages::*;
use prost::encoding::decode_varint;

/// The maximum nesting depth of messages, which is also the decoder's limit.
const DEPTH: usize = 100;
/// The overhead of a string, a list or a number in bytes, including the spare capacity of lists.
const VALUE: u64 = 48;

/// A kind of message; kinds whose fields cost the same are not distinguished.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Port,
    Type,
    Function,
    Shape,
    /// A key with a value, or an operator set with a version.
    Pair,
}

/// The content of a length-delimited field.
enum Field {
    Message(Kind),
    /// Numbers of at least one byte each.
    Numbers,
    /// Bytes that are copied.
    Bytes,
    /// Bytes that the decoded message shares with the file if possible.
    Shared,
}

impl Kind {
    /// The size of the decoded message itself in bytes, including the spare capacity of a list of them.
    fn size(self) -> u64 {
        let size = match self {
            Kind::Model => size_of::<ModelProto>(),
            Kind::Graph => size_of::<GraphProto>(),
            Kind::Node => size_of::<NodeProto>(),
            Kind::Attribute => size_of::<AttributeProto>(),
            Kind::Tensor => size_of::<TensorProto>(),
            Kind::Sparse => size_of::<SparseTensorProto>(),
            Kind::Port => size_of::<ValueInfoProto>(),
            Kind::Type | Kind::Shape => size_of::<TypeProto>(),
            Kind::Function => size_of::<FunctionProto>(),
            Kind::Pair => size_of::<StringStringEntryProto>(),
        };
        2 * size as u64
    }

    fn field(self, number: u64) -> Field {
        let kind = match (self, number) {
            (Kind::Model, 7) | (Kind::Attribute, 6) => Kind::Graph,
            (Kind::Model, 8 | 14) | (Kind::Tensor, 13) | (Kind::Function, 9) => Kind::Pair,
            (Kind::Model, 25) => Kind::Function,
            (Kind::Graph, 1) | (Kind::Function, 7) => Kind::Node,
            (Kind::Graph, 5) | (Kind::Attribute, 5) | (Kind::Sparse, 1 | 2) => Kind::Tensor,
            (Kind::Graph, 11..=13) => Kind::Port,
            (Kind::Graph, 15) | (Kind::Attribute, 22) => Kind::Sparse,
            (Kind::Node, 5) | (Kind::Function, 11) => Kind::Attribute,
            (Kind::Port, 2) => Kind::Type,
            // Field 1 of a dense tensor's type is a number, but field 1 of a shape is an extent, which counts as much as a type.
            (Kind::Type, 1..=9) | (Kind::Shape, 1) => Kind::Shape,
            (Kind::Attribute, 8) | (Kind::Tensor, 1 | 4 | 5 | 7 | 10 | 11) | (Kind::Sparse, 3) => {
                return Field::Numbers;
            }
            (Kind::Shape, 2) => Kind::Shape,
            (Kind::Tensor, 9) => return Field::Shared,
            _ => return Field::Bytes,
        };
        Field::Message(kind)
    }
}

/// The maximum size of the decoded model in bytes; with `shared`, packed tensors share the file's bytes.
pub fn of_model(bytes: &[u8], shared: bool) -> u64 {
    of_message(Kind::Model, bytes, shared, 0)
}

/// The maximum size of a decoded tensor in bytes, including its stored elements.
pub fn of_tensor(bytes: &[u8]) -> u64 {
    of_message(Kind::Tensor, bytes, false, 0)
}

fn of_message(kind: Kind, mut rest: &[u8], shared: bool, depth: usize) -> u64 {
    let mut sum = kind.size();
    while depth < DEPTH && !rest.is_empty() {
        let Ok(tag) = decode_varint(&mut rest) else { break };
        let skipped = match tag & 7 {
            0 => {
                sum += VALUE;
                decode_varint(&mut rest).is_ok()
            }
            1 => skip(&mut rest, 8).is_some(),
            2 => {
                match decode_varint(&mut rest).ok().and_then(|n| skip(&mut rest, usize::try_from(n).ok()?)) {
                    None => false,
                    Some(content) => {
                        let len = content.len() as u64;
                        sum += match kind.field(tag >> 3) {
                            Field::Message(inner) => of_message(inner, content, shared, depth + 1),
                            Field::Numbers => VALUE + 16 * len,
                            Field::Shared if shared => VALUE,
                            Field::Bytes | Field::Shared => VALUE + len,
                        };
                        true
                    }
                }
            }
            5 => {
                sum += VALUE;
                skip(&mut rest, 4).is_some()
            }
            _ => false,
        };
        if !skipped {
            break;
        }
    }
    sum
}

fn skip<'b>(rest: &mut &'b [u8], n: usize) -> Option<&'b [u8]> {
    let (content, after) = rest.split_at_checked(n)?;
    *rest = after;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::import::{NoExternalData, import};
    use prost::Message;

    #[test]
    fn empty_messages_are_counted_as_large_as_they_become() {
        let node = vec![NodeProto::default(); 1000];
        let graph = GraphProto { node, ..Default::default() };
        let model = ModelProto { ir_version: 10, graph: Some(graph), ..Default::default() }.encode_to_vec();
        assert!(model.len() < 2100);
        assert!(of_model(&model, true) >= 1000 * size_of::<NodeProto>() as u64);
        // No prefix of a model makes the count panic.
        for end in 0..model.len() {
            of_model(&model[..end], true);
        }
        let options = Options { memory_limit: Some(200_000), ..Options::default() };
        let e = import(&model, &NoExternalData, &options).unwrap_err().to_string();
        assert!(e.contains("decoding the model's messages would take"), "{e}");
        assert!(e.contains("--memory-limit"), "{e}");
    }

    #[test]
    fn packed_tensors_cost_nothing_where_they_are_shared() {
        let raw = vec![0; 100_000];
        let tensor =
            TensorProto { dims: vec![25_000], data_type: 1, raw_data: raw.into(), ..Default::default() };
        let graph = GraphProto { initializer: vec![tensor], ..Default::default() };
        let model = ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec();
        assert!(of_model(&model, true) < 5000);
        assert!((100_000..110_000).contains(&of_model(&model, false)));
    }
}
