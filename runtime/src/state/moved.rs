//! Copies of positions within states.

use super::{Session, room};
use crate::error::RunError;

/// A place in the states: a row of their first axis, and a position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The row.
    pub row: usize,
    /// The position.
    pub position: usize,
}

impl Session {
    /// Copies `count` positions of all states from one place to another, on the device: the values that the next runs read there are
    /// those of the first place. The states have `rows` rows, such as the sequences of a batch, along their first axis (or only one). The
    /// places may overlap. Lengths stay as they are. This affects all sessions on these states.
    ///
    /// # Errors
    /// [`RunError::State`] for a state that does not grow, is a window, has another number of rows, has no room at one of the places, or whose
    /// positions do not begin at whole words; nothing has changed then. Otherwise an error of the device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::summing()).await?;
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::session::Place;
    /// let number = |x: f32| [("x", Tensor::from_f32(vec![1], &[x]))];
    /// session.run(&number(1.0)).await?;
    /// session.run(&number(10.0)).await?;
    /// // The first number takes the place of the second one.
    /// let at = |position| Place { row: 0, position };
    /// session.copy_positions(1, at(0), at(1), 1).await?;
    /// assert_eq!(session.run(&number(5.0)).await?[0].1.to_f32s(), Some(vec![7.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn copy_positions(
        &mut self,
        rows: usize,
        from: Place,
        to: Place,
        count: usize,
    ) -> Result<(), RunError> {
        self.gpu.health()?;
        let now = self.states.now();
        // (buffer, bytes of a row of positions, bytes before the first place, before the second, to copy, first rows, number of them)
        let mut copies = vec![];
        for s in &self.states.states {
            let wrong = |message: String| RunError::State { state: s.name.clone(), message };
            let layout = room::rows(s).filter(|_| !s.is_window());
            let layout = layout.ok_or_else(|| wrong("it is no state that only grows".to_owned()))?;
            let have = room::positions(s, &now.capacities).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let fits =
                |p: Place| p.row < rows && p.position.checked_add(count).is_some_and(|end| end <= have);
            let lined = rows == 1 || s.shape.first().and_then(|d| d.as_const()) == Some(rows as i64);
            if !lined || !fits(from) || !fits(to) {
                let message =
                    format!("there are no {count} positions at {from:?} and {to:?} in {rows} rows of {have}");
                return Err(wrong(message));
            }
            let bytes = |positions: usize| {
                let bits = (positions as u64).checked_mul(layout.bits).filter(|b| b.is_multiple_of(32));
                bits.map(|b| b / 8)
            };
            let all = [have, from.position, to.position, count].map(bytes);
            let [Some(stride), Some(first), Some(second), Some(size)] = all else {
                return Err(wrong("its positions do not begin at whole words".to_owned()));
            };
            let buffer = now.buffers.get(&s.name).cloned();
            let buffer = buffer.ok_or_else(|| wrong("it has no memory".to_owned()))?;
            let each = layout.count / rows as u64;
            let begin = [from.row, to.row].map(|r| r as u64 * each);
            copies.push((buffer, stride, [first, second], size, begin, each));
        }
        let most = copies.iter().map(|(.., size, _, each)| size * each).max().unwrap_or(0);
        if most == 0 || from == to {
            return Ok(());
        }
        // A buffer cannot be the source and the target of one copy.
        let between = self.gpu.storage("positions of states", most).await?;
        let gpu = &self.gpu;
        gpu.scoped("copying positions of states", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for (buffer, stride, [first, second], size, begin, each) in &copies {
                for r in 0..*each {
                    let at = (begin[0] + r) * stride + first;
                    encoder.copy_buffer_to_buffer(buffer, at, &between, r * size, *size);
                }
                for r in 0..*each {
                    let at = (begin[1] + r) * stride + second;
                    encoder.copy_buffer_to_buffer(&between, r * size, buffer, at, *size);
                }
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await
    }
}
