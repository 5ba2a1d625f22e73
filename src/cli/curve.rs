//! A picture of the loss over steps.

use super::axes::{Area, line, picture};
use super::run::number;

const AREA: Area = Area { width: 860.0, height: 460.0, left: 86.0, right: 24.0, top: 60.0, bottom: 58.0 };
/// The most points of a line. If there are more, each point stands for several steps.
const POINTS: usize = 1000;
/// The axis is logarithmic if the ratio of the largest and the smallest loss exceeds this.
const FAR: f64 = 30.0;

/// Draws the picture: each loss and, in front of them, the moving mean over a hundredth of the steps. Losses that are not
/// finite are left out.
pub fn svg(name: &str, points: &[(u64, f64)]) -> String {
    let finite: Vec<(f64, f64)> =
        points.iter().filter(|p| p.1.is_finite()).map(|(s, l)| (*s as f64, *l)).collect();
    let (x0, x1) = (finite.first().map_or(0.0, |p| p.0), finite.last().map_or(1.0, |p| p.0));
    let x1 = x1.max(x0 + 1.0);
    let (low, high) =
        finite.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), p| (a.min(p.1), b.max(p.1)));
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    let logarithmic = low > 0.0 && high / low > FAR;
    let scaled = |l: f64| if logarithmic { l.log10() } else { l };
    let ticks = if logarithmic { decades(low, high) } else { steps(low, high) };
    let (y0, y1) = (
        scaled(ticks.first().copied().unwrap_or(low).min(low)),
        scaled(ticks.last().copied().unwrap_or(high).max(high)),
    );
    let px = |x: f64| AREA.x((x - x0) / (x1 - x0));
    let py = |l: f64| AREA.y((scaled(l) - y0) / (y1 - y0).max(f64::MIN_POSITIVE));
    let title = format!("{name}: loss over {} steps", finite.len());
    let ends = match (finite.first(), finite.last()) {
        (Some(a), Some(b)) => format!("{} at step {}, {} at step {}", number(a.1), a.0, number(b.1), b.0),
        _ => "no step has a finite loss".to_owned(),
    };
    let mut s = picture(AREA.width, AREA.height, &title, &ends);
    for tick in ticks {
        AREA.mark_y(&mut s, py(tick), &number(tick));
    }
    for tick in steps(x0, x1).into_iter().filter(|t| t.fract() == 0.0 && (x0..=x1).contains(t)) {
        AREA.mark_x(&mut s, px(tick), &tick.to_string());
    }
    AREA.name_x(&mut s, "step");
    for (of, colour, width) in [(extremes(&finite), "#a9c3e2", 1.0), (means(&finite), "#2f6fb5", 1.8)] {
        line(&mut s, of.iter().map(|(x, l)| (px(*x), py(*l))), colour, width);
    }
    s + "</svg>\n"
}

/// Round numbers that enclose an interval, about four to ten of them.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let span = (high - low).max(low.abs() * 1e-6).max(f64::MIN_POSITIVE);
    let rough = 10f64.powf((span / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * rough).find(|s| span / s <= 6.0);
    let step = step.unwrap_or(span);
    let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
    (first..=last.clamp(first + 1, first + 12)).map(|i| i as f64 * step).collect()
}

/// Powers of ten that enclose two positive numbers.
fn decades(low: f64, high: f64) -> Vec<f64> {
    (low.log10().floor() as i32..=high.log10().ceil() as i32).map(|e| 10f64.powi(e)).collect()
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
    fn axes_have_round_numbers() {
        assert_eq!(steps(0.13, 0.58), [0.1, 0.2, 0.30000000000000004, 0.4, 0.5, 0.6000000000000001]);
        assert_eq!(steps(1.0, 50.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(decades(0.02, 3.0), [0.01, 0.1, 1.0, 10.0]);
        assert!((2..=13).contains(&steps(7.0, 7.0).len()));
    }

    #[test]
    fn any_losses_make_a_picture() {
        let many: Vec<(u64, f64)> = (0..100_000).map(|i| (i, 1.0 / (i as f64 + 1.0))).collect();
        for points in
            [&[][..], &[(3, f64::NAN)], &[(1, 0.0)], &[(5, -1.0), (6, f64::INFINITY), (7, 2.0)], &many]
        {
            let s = svg("m", points);
            assert!(s.ends_with("</svg>\n") && !s.contains("NaN") && !s.contains("inf"), "{s}");
            assert!(s.len() < 60_000, "{}", s.len());
        }
    }
}
