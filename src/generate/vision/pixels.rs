//! Pictures as numbers, as the image processors of transformers make them.

use super::processor::{Filter, Processor};
use crate::{Error, Tensor};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageReader, RgbImage, imageops};
use std::io::Cursor;
use std::path::Path;
use wgfc_compiler::budget::Budget;

/// The numbers f32 `[3, height, width]` of a picture in PNG or JPEG. `name` is that of its file, for messages.
pub fn of(picture: &[u8], name: &Path, how: &Processor, memory_limit: Option<u64>) -> Result<Tensor, Error> {
    let wrong = |e: String| {
        let message = format!("is not a picture that can be read: {e}");
        match name.as_os_str().is_empty() {
            true => Error::usage(format!("the picture {message}"), "give a PNG or a JPEG"),
            false => Error::file_help(name, message, "give a PNG or a JPEG"),
        }
    };
    let reader = ImageReader::new(Cursor::new(picture)).with_guessed_format();
    let reader = reader.map_err(|e| wrong(e.to_string()))?;
    let mut decoder = reader.into_decoder().map_err(|e| wrong(e.to_string()))?;
    let (width, height) = decoder.dimensions();
    let budget = Budget::of_data(memory_limit);
    budget.add_file(picture.len() as u64);
    // The decoded picture, and its copy with three channels.
    let need = decoder.total_bytes().saturating_add(3 * u64::from(width) * u64::from(height));
    let taken = budget.take(need, format_args!("a picture of {width} × {height}"));
    taken.map_err(|d| Error::usage(d.message, d.help.unwrap_or_default()))?;
    // An orientation that cannot be read is the normal one.
    let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|e| wrong(e.to_string()))?;
    picture.apply_orientation(orientation);
    let mut picture = picture.into_rgb8();
    let filter = match how.filter {
        Filter::Nearest => FilterType::Nearest,
        Filter::Lanczos => FilterType::Lanczos3,
        Filter::Bilinear => FilterType::Triangle,
        Filter::Bicubic => FilterType::CatmullRom,
    };
    let sizes = how.resized((picture.height(), picture.width()));
    let sizes = sizes.ok_or_else(|| wrong(format!("{width} × {height} is too long or too large")))?;
    for (h, w) in sizes {
        if (picture.height(), picture.width()) != (h, w) {
            picture = imageops::resize(&picture, w, h, filter);
        }
    }
    if let Some((h, w)) = how.crop {
        picture = centre(&picture, h, w);
    }
    let (h, w) = (picture.height() as usize, picture.width() as usize);
    let bytes = picture.as_raw();
    let mut values = Vec::with_capacity(3 * h * w);
    for channel in 0..3 {
        let (mean, deviation) = (how.mean[channel], how.deviation[channel]);
        let one = |b: &u8| (f32::from(*b) * how.scale - mean) / deviation;
        values.extend(bytes.iter().skip(channel).step_by(3).map(one));
    }
    Ok(Tensor::from_f32(vec![3, h, w], &values))
}

/// The centre of a picture; beyond its edges it is black.
fn centre(picture: &RgbImage, height: u32, width: u32) -> RgbImage {
    let offset = |have: u32, want: u32| match have >= want {
        true => i64::from((have - want) / 2),
        false => -i64::from((want - have) / 2),
    };
    let mut out = RgbImage::new(width, height);
    let (x, y) = (offset(picture.width(), width), offset(picture.height(), height));
    imageops::replace(&mut out, picture, -x, -y);
    out
}
