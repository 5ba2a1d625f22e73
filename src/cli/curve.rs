//! A picture of the loss over steps.

use super::axes::{Canvas, Drawn, Frame, chart, decades, plot, stroke};
use super::results::number;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::{IntoLogRange, LineSeries};
use std::ops::Range;
use wgfc::Error;

/// The most points of a line. If there are more, each point stands for several steps.
const POINTS: usize = 1000;
/// The axis is logarithmic if the ratio of the largest and the smallest loss exceeds this.
const FAR: f64 = 30.0;
/// The largest loss that is drawn: plotters needs finite differences and ratios.
const MOST: f64 = 1e150;

/// Draws the picture: each loss and, in front of them, the moving mean over a hundredth of the steps. Losses that are not
/// finite, or beyond [`MOST`], are left out.
pub fn svg(name: &str, points: &[(u64, f64)]) -> Result<String, Error> {
    let finite: Vec<(f64, f64)> =
        points.iter().filter(|p| p.1.abs() <= MOST).map(|(s, l)| (*s as f64, *l)).collect();
    let (first, last) = (finite.first(), finite.last());
    let start = first.map_or(0.0, |p| p.0);
    let x = start..last.map_or(1.0, |p| p.0).max(start + 1.0);
    let losses = || finite.iter().map(|p| p.1);
    let (low, high) = losses().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), l| (a.min(l), b.max(l)));
    let title = format!("{name}: loss over {} steps", finite.len());
    let ends = match (first, last) {
        (Some(a), Some(b)) => format!("{} at step {}, {} at step {}", number(a.1), a.0, number(b.1), b.0),
        _ => "no step has a finite loss".to_owned(),
    };
    chart((860, 460), &title, &ends, |on| {
        if low > 0.0 && high / low > FAR {
            return lines(on, &finite, x, decades(losses()).log_scale());
        }
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let space = ((high - low) * 0.04).max(low.abs() * 1e-3).max(1e-9);
        lines(on, &finite, x, low - space..high + space)
    })
}

fn lines<Y>(on: &Canvas, finite: &[(f64, f64)], x: Range<f64>, y: Y) -> Drawn<String>
where
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let step = |x: &f64| if x.fract() == 0.0 { x.to_string() } else { String::new() };
    let frame = Frame { margins: [60, 24, 58, 86], names: ["step", ""], values: [step, |l| number(*l)] };
    let mut on = plot(on, &frame, x, y)?;
    on.draw_series(LineSeries::new(extremes(finite), stroke("#a9c3e2", 1.0)))?;
    on.draw_series(LineSeries::new(means(finite), stroke("#2f6fb5", 1.8)))?;
    Ok(String::new())
}

/// All points or, if there are many, the minimum and the maximum of each chunk of them.
fn extremes(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points.to_vec();
    }
    let by_loss = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let chunks = points.chunks(points.len().div_ceil(POINTS / 2));
    chunks.flat_map(|c| [c.iter().min_by(by_loss), c.iter().max_by(by_loss)]).flatten().copied().collect()
}

/// The moving mean over a hundredth of the points, at up to `POINTS` of them.
fn means(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let around = points.len() / 200;
    let mut sums = vec![0.0];
    for p in points {
        sums.push(sums.last().copied().unwrap_or(0.0) + p.1);
    }
    let every = points.len().div_ceil(POINTS).max(1);
    let at = |i: usize| {
        let (from, to) = (i.saturating_sub(around), (i + around + 1).min(points.len()));
        (points[i].0, (sums[to] - sums[from]) / (to - from) as f64)
    };
    (0..points.len()).step_by(every).chain(points.len().checked_sub(1)).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_losses_make_a_picture() {
        let many: Vec<(u64, f64)> = (0..100_000).map(|i| (i, 1.0 / (i as f64 + 1.0))).collect();
        for points in [
            &[][..],
            &[(3, f64::NAN)],
            &[(1, 0.0)],
            &[(5, -1.0), (6, f64::INFINITY), (7, 2.0)],
            &many,
            &[(0, -f64::MAX), (1, f64::MAX)],
            &[(0, 5e-324), (1, 1e149)],
            &[(u64::MAX, 1.0)],
            &[(0, 1e15), (1, 1e15 + 1.0)],
        ] {
            let s = svg("m", points).unwrap();
            assert!(s.ends_with("</svg>\n") && !s.contains("NaN") && !s.contains("inf"), "{s}");
            assert!(s.len() < 60_000, "{}", s.len());
        }
    }
}
