//! The outputs of a run: files, tables and classes.

use std::collections::BTreeMap;
use std::path::Path;
use wgfc::inspect::table;
use wgfc::value_info::ValueInfo;
use wgfc::{Error, Tensor, npy};

pub fn read_labels(path: &Path) -> Result<Vec<String>, Error> {
    let bytes = wgfc::files::map_file(path)?;
    let text = std::str::from_utf8((*bytes).as_ref())
        .map_err(|_| Error::file_help(path, "is not text", "give a UTF-8 file with one name a line"))?;
    Ok(text.trim_end().lines().map(|l| l.trim().to_owned()).collect())
}

pub fn write_outputs(
    dir: Option<&Path>,
    ports: &[ValueInfo],
    outputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<String>, Error> {
    let Some(dir) = dir else { return Ok(vec![]) };
    let mut written: Vec<String> = Vec::new();
    for port in ports {
        let Some(tensor) = outputs.get(&port.name) else { continue };
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
        let stem: String = port.name.chars().map(plain).collect();
        let stem = stem.trim_start_matches('.');
        let mut path = dir.join(format!("{stem}.npy"));
        let mut n = 1;
        while written.contains(&path.display().to_string()) {
            n += 1;
            path = dir.join(format!("{stem}_{n}.npy"));
        }
        npy::write(tensor, &path)?;
        written.push(path.display().to_string());
    }
    Ok(written)
}

/// Statistics of a tensor's values; each of them is NaN if one of the values is.
pub struct Digest {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
    pub not_finite: usize,
}

pub fn digest(t: &Tensor) -> Option<Digest> {
    let values: Vec<f64> = match t.dtype {
        wgfc::DType::F32 => t.to_f32s()?.into_iter().map(f64::from).collect(),
        _ => t.scalars()?.into_iter().map(wgfc::ir::Scalar::as_f64).collect(),
    };
    let not_finite = values.iter().filter(|v| !v.is_finite()).count();
    let unless_nan = |v: f64| if values.iter().any(|v| v.is_nan()) { f64::NAN } else { v };
    (!values.is_empty()).then(|| Digest {
        min: unless_nan(values.iter().copied().fold(f64::INFINITY, f64::min)),
        mean: unless_nan(values.iter().sum::<f64>() / values.len() as f64),
        max: unless_nan(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        not_finite,
    })
}

/// A number with up to six significant digits.
pub fn number(v: f64) -> String {
    if v == v.trunc() && v.abs() < 1e6 {
        return format!("{v}");
    }
    match v.abs() {
        _ if !v.is_finite() => v.to_string(),
        a if (1e-3..1e6).contains(&a) => {
            let digits = (5 - a.log10().floor() as i32).max(0) as usize;
            let s = format!("{v:.digits$}");
            if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s }
        }
        _ => format!("{v:.4e}"),
    }
}

pub fn first_values(t: &Tensor, n: usize) -> Vec<f64> {
    let head = t.numel().min(n);
    let few = Tensor { shape: vec![head], ..t.clone() };
    wgfc::ir::storage::decode(few.dtype, t.bytes().unwrap_or_default(), head)
        .into_iter()
        .map(|s| s.as_f64())
        .collect()
}

pub fn outputs_text(ports: &[ValueInfo], outputs: &BTreeMap<String, Tensor>) -> String {
    let mut rows = vec![["output", "type", "min", "mean", "max", "first values"].map(String::from).to_vec()];
    let mut remarks = String::new();
    for port in ports {
        let Some(t) = outputs.get(&port.name) else { continue };
        let shape: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
        let mut row = vec![port.name.clone(), format!("{}[{}]", t.dtype, shape.join(", "))];
        match digest(t) {
            Some(d) => {
                row.extend([number(d.min), number(d.mean), number(d.max)]);
                if d.not_finite > 0 {
                    remarks += &format!("  {}: {} values are NaN or infinite\n", port.name, d.not_finite);
                }
            }
            None => row.extend(["-", "-", "-"].map(String::from)),
        }
        let first: Vec<String> = first_values(t, 4).into_iter().map(number).collect();
        row.push(first.join(", ") + if t.numel() > 4 { ", …" } else { "" });
        rows.push(row);
    }
    table(&rows, &[false, false, true, true, true, false]) + &remarks
}

/// The rows and classes of an output [N, classes]. Further axes of extent 1 may follow, as after pooling.
fn rows_of_classes(t: &Tensor) -> Option<(usize, usize)> {
    match t.shape[..] {
        [rows, classes, ref rest @ ..] if t.dtype.is_float() && rest.iter().all(|n| *n == 1) => {
            Some((rows, classes))
        }
        _ => None,
    }
}

/// A note if no output has as many classes as there are labels, so that the labels are not used.
pub fn unused_labels(labels: &[String], outputs: &BTreeMap<String, Tensor>) -> Option<String> {
    let has = |t: &Tensor| rows_of_classes(t).is_some_and(|(_, classes)| classes == labels.len());
    if outputs.values().any(has) {
        return None;
    }
    let shapes: Vec<String> = outputs.iter().map(|(name, t)| format!("`{name}` is {:?}", t.shape)).collect();
    Some(format!(
        "--labels names {} classes, and no output is [N, {0}] of a float type: {}",
        labels.len(),
        shapes.join(", ")
    ))
}

/// The best classes of each row of a float output [N, classes]. Labels are used only if their number is that of the classes.
pub fn best_classes(
    t: &Tensor,
    labels: Option<&[String]>,
    top: usize,
) -> Vec<Vec<(usize, f32, Option<String>)>> {
    let Some((rows, classes)) = rows_of_classes(t) else { return vec![] };
    let labels = labels.filter(|l| l.len() == classes);
    let enough = classes >= 10 || labels.is_some();
    if !enough || classes == 0 || rows == 0 || rows > 64 || top == 0 {
        return vec![];
    }
    let values = t.to_f32s().unwrap_or_default();
    values
        .chunks_exact(classes)
        .map(|row| {
            let mut order: Vec<usize> = (0..classes).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let label = |i: usize| labels.and_then(|l| l.get(i).cloned());
            order.into_iter().take(top).map(|i| (i, row[i], label(i))).collect()
        })
        .collect()
}

/// Whether the values of a row are probabilities, as a softmax makes them.
fn are_shares(row: &[f32]) -> bool {
    row.iter().all(|v| (0.0..=1.0).contains(v)) && (row.iter().sum::<f32>() - 1.0).abs() < 1e-3
}

pub fn classes_text(name: &str, t: &Tensor, labels: Option<&[String]>, top: usize) -> String {
    let classes = rows_of_classes(t).map_or(1, |(_, classes)| classes.max(1));
    let shares = t.to_f32s().is_some_and(|v| v.chunks_exact(classes).all(are_shares));
    let value = |v: f32| match shares {
        true => format!("{:.2} %", 100.0 * v),
        false => number(f64::from(v)),
    };
    let best = best_classes(t, labels, top);
    let several = best.len() > 1;
    let mut s = String::new();
    for (n, row) in best.iter().enumerate() {
        let of = if several { format!("{name}[{n}]") } else { name.to_owned() };
        s += &format!("\n  top {} of {of}\n", row.len());
        let rows: Vec<Vec<String>> = row
            .iter()
            .map(|(i, v, label)| {
                vec![String::new(), i.to_string(), value(*v), label.clone().unwrap_or_default()]
            })
            .collect();
        s += &table(&rows, &[false, true, true, false]);
    }
    if best.is_empty() { s } else { s + "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (v, s) in [
            (0.0, "0"),
            (3.0, "3"),
            (0.1, "0.1"),
            (-1.5, "-1.5"),
            (12.345678, "12.3457"),
            (1.23e-7, "1.2300e-7"),
            (187_520.4, "187520"),
            (999_999.9, "1000000"),
        ] {
            assert_eq!(number(v), s);
        }
    }

    #[test]
    fn statistics_over_nan_are_nan() {
        let of = |v: &[f32]| {
            let d = digest(&Tensor::from_f32(vec![v.len()], v)).unwrap();
            ([d.min, d.mean, d.max].map(number), d.not_finite)
        };
        assert_eq!(of(&[1.0, f32::NAN, 3.0]), (["NaN", "NaN", "NaN"].map(String::from), 1));
        assert_eq!(of(&[1.0, f32::INFINITY]), (["1", "inf", "inf"].map(String::from), 1));
        assert_eq!(of(&[1.0, 3.0]), (["1", "2", "3"].map(String::from), 0));
        assert!(digest(&Tensor::from_f32(vec![0], &[])).is_none());
    }

    #[test]
    fn the_best_classes_come_first() {
        let mut v = vec![0.0; 12];
        (v[7], v[3]) = (2.0, 1.0);
        let t = Tensor::from_f32(vec![1, 12], &v);
        let labels: Vec<String> = (0..12).map(|i| format!("class {i}")).collect();
        let best = best_classes(&t, Some(&labels), 2);
        assert_eq!(best, [[(7, 2.0, Some("class 7".to_owned())), (3, 1.0, Some("class 3".to_owned()))]]);
        assert!(best_classes(&Tensor::from_f32(vec![12], &v), None, 5).is_empty());
        let pooled = Tensor::from_f32(vec![1, 12, 1, 1], &v);
        assert_eq!(best_classes(&pooled, Some(&labels), 2), best);
        // Labels of another model are not used, as they would name wrong classes.
        assert_eq!(best_classes(&t, Some(&labels[1..]), 1), [[(7, 2.0, None)]]);
        let outputs = BTreeMap::from([("scores".to_owned(), pooled)]);
        assert_eq!(unused_labels(&labels, &outputs), None);
        let words = unused_labels(&labels[1..], &outputs).unwrap();
        assert!(words.contains("11 classes") && words.contains("`scores` is [1, 12, 1, 1]"), "{words}");
    }
}
