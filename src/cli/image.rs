//! A picture as an input of a model.

use super::args::ImageNorm;
use image::imageops::FilterType;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::compiler::budget::Budget;
use wgfc::ir::{Dim, Scalar};
use wgfc::{DType, Error, Tensor};

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// The axes of an input that hold channels, height and width.
struct Axes {
    channels: usize,
    height: usize,
    width: usize,
}

fn axes(shape: &[Dim]) -> Option<Axes> {
    let r = shape.len();
    let is_channels = |d: &Dim| [1, 3, 4].iter().any(|c| d.is(*c));
    let at = |i: usize| shape.get(i);
    if !(2..=4).contains(&r) {
        return None;
    }
    if r >= 3 && at(r - 3).is_some_and(is_channels) {
        return Some(Axes { channels: r - 3, height: r - 2, width: r - 1 });
    }
    if r >= 3 && at(r - 1).is_some_and(is_channels) {
        return Some(Axes { channels: r - 1, height: r - 3, width: r - 2 });
    }
    None
}

/// Reads the picture at `path` for an input of type `dtype` and `shape`. `dims` holds the known symbols. An unknown height
/// or width is the picture's own; an unknown batch is 1.
pub fn read(
    path: &Path,
    dtype: DType,
    shape: &[Dim],
    dims: &BTreeMap<String, i64>,
    norm: ImageNorm,
    budget: &Budget,
) -> Result<Tensor, Error> {
    let wants: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let unfit = || {
        Error::file_help(
            path,
            format!("is a picture, the model wants {dtype}[{}]", wants.join(", ")),
            "pictures go to inputs with 1, 3 or 4 channels, as [N, 3, H, W] or [N, H, W, 3]",
        )
    };
    let axes = axes(shape).ok_or_else(unfit)?;
    if !dtype.is_float() && dtype != DType::U8 {
        return Err(unfit());
    }
    let bytes = wgfc::files::map_file(path)?;
    let no_picture = |e: String| {
        Error::file_help(path, format!("is not a picture that can be read: {e}"), "give a PNG or a JPEG")
    };
    let reader = || {
        let bytes = std::io::Cursor::new((*bytes).as_ref());
        image::ImageReader::new(bytes).with_guessed_format().map_err(|e| no_picture(e.to_string()))
    };
    let (width, height) = reader()?.into_dimensions().map_err(|e| no_picture(e.to_string()))?;
    budget.add_file((*bytes).as_ref().len() as u64);
    // One byte for each of up to four channels.
    let need = 4 * u64::from(width) * u64::from(height);
    budget.take(need, format_args!("a picture of {width} × {height}")).map_err(|d| Error::File {
        path: path.to_owned(),
        problems: vec![d.message],
        help: d.help,
    })?;
    let picture = reader()?.decode().map_err(|e| no_picture(e.to_string()))?;
    let known = |axis: usize| -> Option<usize> {
        shape.get(axis)?.eval_syms(&|s| dims.get(s).copied()).and_then(|v| usize::try_from(v).ok())
    };
    let h = known(axes.height).unwrap_or(picture.height() as usize);
    let w = known(axes.width).unwrap_or(picture.width() as usize);
    let c = known(axes.channels).ok_or_else(unfit)?;
    let batch_axis = (shape.len() == 4).then_some(0);
    if batch_axis.and_then(known).is_some_and(|n| n != 1) {
        return Err(Error::file_help(
            path,
            format!("is one picture, the model wants a batch of {}", wants[0]),
            "give --dim for a batch of 1, or a .npy file",
        ));
    }
    let (Ok(width), Ok(height)) = (u32::try_from(w), u32::try_from(h)) else { return Err(unfit()) };
    if width == 0 || height == 0 || w.saturating_mul(h) > 1 << 26 {
        return Err(Error::file_help(
            path,
            format!("cannot be scaled to {w} × {h}"),
            "give other dimensions with --dim",
        ));
    }
    let scaled = picture.resize_to_fill(width, height, FilterType::Triangle);
    let pixels: Vec<u8> = match c {
        1 => scaled.to_luma8().into_raw(),
        3 => scaled.to_rgb8().into_raw(),
        _ => scaled.to_rgba8().into_raw(),
    };
    let value = |y: usize, x: usize, k: usize| -> f32 {
        let v = pixels.get((y * w + x) * c + k).copied().unwrap_or(0);
        match norm {
            ImageNorm::None => f32::from(v),
            ImageNorm::Unit => f32::from(v) / 255.0,
            ImageNorm::Imagenet if c == 3 => (f32::from(v) / 255.0 - MEAN[k]) / DEVIATION[k],
            ImageNorm::Imagenet => (f32::from(v) / 255.0 - 0.449) / 0.226,
        }
    };
    let mut out_shape = vec![1usize; shape.len()];
    (out_shape[axes.channels], out_shape[axes.height], out_shape[axes.width]) = (c, h, w);
    if dtype == DType::U8 {
        let mut v = Vec::with_capacity(pixels.len());
        each(&axes, c, h, w, |y, x, k| v.push(pixels.get((y * w + x) * c + k).copied().unwrap_or(0)));
        return Tensor::new(dtype, out_shape, v)
            .map_err(|m| Error::file_help(path, m, "give another picture, or other dimensions with --dim"));
    }
    let mut v = Vec::with_capacity(pixels.len());
    each(&axes, c, h, w, |y, x, k| v.push(value(y, x, k)));
    if dtype == DType::F32 {
        return Ok(Tensor::from_f32(out_shape, &v));
    }
    let v: Vec<Scalar> = v.into_iter().map(|x| Scalar::from_f64(dtype, f64::from(x))).collect();
    Ok(Tensor::from_scalars(dtype, out_shape, &v))
}

/// Visits (y, x, channel) in the memory order of the input.
fn each(axes: &Axes, c: usize, h: usize, w: usize, mut f: impl FnMut(usize, usize, usize)) {
    if axes.channels < axes.height {
        for k in 0..c {
            for y in 0..h {
                for x in 0..w {
                    f(y, x, k);
                }
            }
        }
    } else {
        for y in 0..h {
            for x in 0..w {
                for k in 0..c {
                    f(y, x, k);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_scaled_cut_and_normalised() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        // An 8 × 4 picture, the left half red, the right half blue, is cut to its central 4 × 4, with the seam in the
        // middle.
        let picture =
            image::RgbImage::from_fn(8, 4, |x, _| image::Rgb(if x < 4 { [255, 0, 0] } else { [0, 0, 255] }));
        picture.save(&path).unwrap();
        let dims = BTreeMap::new();
        let budget = Budget::of_data(None);
        let read =
            |path: &Path, dtype, shape: &[Dim], dims, norm| read(path, dtype, shape, dims, norm, &budget);
        let shape = [Dim::sym("batch"), Dim::constant(3), Dim::constant(4), Dim::constant(4)];
        let t = read(&path, DType::F32, &shape, &dims, ImageNorm::Unit).unwrap();
        assert_eq!(t.shape, [1, 3, 4, 4]);
        let v = t.to_f32s().unwrap();
        assert_eq!(v[0..4], [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(v[32..36], [0.0, 0.0, 1.0, 1.0]);
        let t = read(&path, DType::F32, &shape, &dims, ImageNorm::Imagenet).unwrap();
        assert!((t.to_f32s().unwrap()[0] - (1.0 - 0.485) / 0.229).abs() < 1e-6);
        // A layout with channels last, of bytes, at the picture's own size.
        let shape = [Dim::constant(1), Dim::sym("h"), Dim::sym("w"), Dim::constant(3)];
        let t = read(&path, DType::U8, &shape, &dims, ImageNorm::Imagenet).unwrap();
        assert_eq!(t.shape, [1, 4, 8, 3]);
        assert_eq!(t.bytes().unwrap()[..3], [255, 0, 0]);
        // A file that is no picture.
        let e = read(&path, DType::F32, &[Dim::constant(7)], &dims, ImageNorm::Unit).unwrap_err();
        assert!(e.to_string().contains("is a picture, the model wants f32[7]"), "{e}");
        std::fs::write(&path, b"no").unwrap();
        let shape = [Dim::constant(3), Dim::constant(4), Dim::constant(4)];
        assert!(
            read(&path, DType::F32, &shape, &dims, ImageNorm::Unit)
                .unwrap_err()
                .to_string()
                .contains("not a picture")
        );
    }

    /// A small file that decodes to a large picture.
    #[test]
    fn pictures_draw_from_the_budget() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        image::GrayImage::new(900, 700).save(&path).unwrap();
        let shape = [Dim::constant(1), Dim::constant(4), Dim::constant(4)];
        let within = |limit| {
            let budget = Budget::of_data(limit);
            read(&path, DType::F32, &shape, &BTreeMap::new(), ImageNorm::Unit, &budget)
        };
        let e = within(Some(1_000_000)).unwrap_err().to_string();
        assert!(e.contains("a picture of 900 × 700 would take 3 MB") && e.contains("--memory-limit"), "{e}");
        assert_eq!(within(None).unwrap().shape, [1, 4, 4]);
    }
}
