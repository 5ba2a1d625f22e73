//! Detects repeated layers: sequences of dispatches that occur several times in a row.

use wgfc::ir::Program;

/// The most dispatches in a repeated layer.
const LONGEST: usize = 256;
/// The least number of repetitions that are merged.
pub const FEWEST: usize = 3;

/// The repetitions among a program's dispatches.
pub struct Repeats {
    /// For each dispatch, the one that represents it and the number of dispatches that this one represents.
    of: Vec<(usize, usize)>,
}

impl Repeats {
    /// The repetitions of a program. From the first dispatch on, the layer that merges the most dispatches is chosen.
    pub fn of(program: &Program) -> Repeats {
        let mut kinds: Vec<(&[String], String)> = Vec::new();
        let alike: Vec<usize> = (program.dispatches.iter().enumerate())
            .map(|(i, d)| {
                let family = program.kernels.get(d.kernel).map_or("", |k| k.family.as_str());
                // Further operators are not compared: their order may differ, and the first layer may lack one of them.
                let operator = wgfc::inspect::operators(program, i).first().copied().unwrap_or_default();
                let text = format!("{family} {operator} {} {}", d.bytes, d.flops);
                let kind = (&d.writes[..], text);
                kinds.iter().position(|k| *k == kind).unwrap_or_else(|| {
                    kinds.push(kind);
                    kinds.len() - 1
                })
            })
            .collect();
        Repeats { of: fold(&alike) }
    }

    /// The dispatch that represents number `i`.
    pub fn first(&self, i: usize) -> usize {
        self.of.get(i).map_or(i, |o| o.0)
    }
    /// The number of dispatches that number `i` represents.
    pub fn times(&self, i: usize) -> usize {
        self.of.get(i).map_or(1, |o| o.1)
    }
    /// Whether any layer is repeated.
    pub fn any(&self) -> bool {
        self.of.iter().any(|o| o.1 > 1)
    }
}

fn fold(alike: &[usize]) -> Vec<(usize, usize)> {
    let mut of: Vec<(usize, usize)> = (0..alike.len()).map(|i| (i, 1)).collect();
    let mut start = 0;
    while start < alike.len() {
        // The number of merged dispatches, the length of the layer, and its repetitions.
        let mut best = (0, 1, 1);
        for length in 1..=LONGEST.min((alike.len() - start) / FEWEST) {
            let equal = (start..alike.len() - length).take_while(|i| alike[*i] == alike[*i + length]).count();
            let times = equal / length + 1;
            if times >= FEWEST && length * (times - 1) > best.0 {
                best = (length * (times - 1), length, times);
            }
        }
        let (_, length, times) = best;
        if times > 1 {
            for (i, o) in of[start..start + length * times].iter_mut().enumerate() {
                *o = (start + i % length, times);
            }
        }
        start += length * times;
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_in_a_row_are_found() {
        let times = |alike: &[usize]| -> Vec<usize> {
            let of = fold(alike);
            of.iter().enumerate().filter(|(i, o)| o.0 == *i).map(|(_, o)| o.1).collect()
        };
        assert_eq!(times(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8]), [1, 3, 3, 3, 1]);
        assert_eq!(times(&[1, 2, 1, 2]), [1, 1, 1, 1]);
        assert_eq!(times(&[5, 5, 5, 5, 6]), [4, 1]);
        assert_eq!(times(&[]), [0; 0]);
        // In nested repetitions, the outer layers merge more dispatches.
        let mut v = vec![];
        for _ in 0..4 {
            v.extend([1, 1, 1, 2]);
        }
        assert_eq!(times(&v), [4; 4]);
    }
}
