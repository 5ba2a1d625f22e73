//! The order in which rows are used.

use crate::random::Rng;

/// An endless sequence of rows, epoch after epoch. With a seed each epoch has its own shuffle, else the rows keep their order.
pub(super) struct Order {
    rows: usize,
    seed: Option<u64>,
    /// The epoch of the order in `shuffled`.
    epoch: Option<u64>,
    shuffled: Vec<usize>,
}

impl Order {
    pub(super) fn new(rows: usize, seed: Option<u64>) -> Order {
        Order { rows, seed, epoch: None, shuffled: vec![] }
    }

    pub(super) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The row at position `samples` of the sequence. It depends on nothing but the number of rows, the seed and the
    /// position.
    pub(super) fn row(&mut self, samples: u64) -> usize {
        let rows = self.rows.max(1) as u64;
        let (epoch, place) = (samples / rows, (samples % rows) as usize);
        let Some(seed) = self.seed else { return place };
        if self.epoch != Some(epoch) {
            self.shuffled.clear();
            self.shuffled.extend(0..self.rows);
            let mut rng = Rng::new(seed, &format!("epoch {epoch}"));
            for i in (1..self.rows).rev() {
                let other = (u128::from(rng.bits()) * (i as u128 + 1)) >> 64;
                self.shuffled.swap(i, other as usize);
            }
            self.epoch = Some(epoch);
        }
        self.shuffled.get(place).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_has_every_row_once_in_an_order_of_its_own() {
        let draw = |seed, from: u64| {
            let mut order = Order::new(13, seed);
            (from..65).map(|i| order.row(i)).collect::<Vec<_>>()
        };
        let drawn = draw(Some(7), 0);
        for (e, epoch) in drawn.chunks(13).enumerate() {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..13).collect::<Vec<_>>());
            assert!(e == 0 || epoch != &drawn[..13]);
        }
        assert_eq!(drawn[20..], draw(Some(7), 20), "it does not matter where one begins");
        assert_ne!(drawn, draw(Some(8), 0));
        assert_eq!(draw(None, 0)[11..15], [11, 12, 0, 1]);
    }
}
