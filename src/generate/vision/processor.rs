//! The steps by which a picture becomes numbers, as the model's publisher says in `preprocessor_config.json`.

use crate::Error;
use crate::generate::Decoder;
use serde_json::Value;
use std::path::Path;

/// The file of an image processor, and that of a whole processor, which has it in it.
const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
/// The longest edge of a picture that is resized by its longest edge.
const LONGEST: u32 = 4096;
/// The most pixels that a picture is resized to.
const MOST: u64 = 1 << 26;

/// A filter of Pillow's, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Nearest,
    Lanczos,
    Bilinear,
    Bicubic,
}

/// The size to which a picture is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Height and width.
    Exact(u32, u32),
    /// The shorter edge; the other keeps the proportions.
    Shortest(u32),
    /// The longer edge; the other keeps the proportions and is even.
    Longest(u32),
}

/// The steps by which a picture becomes numbers. A picture is one tile.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    pub filter: Filter,
    /// The sizes to which the picture is resized, one after the other.
    pub sizes: Vec<Size>,
    /// Height and width of the centre that is kept.
    pub crop: Option<(u32, u32)>,
    /// The factor of a byte.
    pub scale: f32,
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl Processor {
    /// Reads the settings beside a model.
    pub fn of(decoder: &Decoder) -> Result<Processor, Error> {
        for name in FILES {
            let Some((path, value)) = decoder.json_beside(name)? else { continue };
            let own = value.get("image_processor").unwrap_or(&value);
            if own.get("image_processor_type").is_some() || own.get("size").is_some() {
                return Processor::parse(own).map_err(|e| wrong(&path, e));
            }
        }
        Err(Error::file_help(
            decoder.path(),
            "does not say how a picture becomes numbers: it has neither preprocessor_config.json nor processor_config.json",
            "fetch the file from the model's publisher",
        ))
    }

    fn parse(v: &Value) -> Result<Processor, String> {
        let flag = |key: &str, or: bool| v.get(key).and_then(Value::as_bool).unwrap_or(or);
        let filter = match v.get("resample").and_then(Value::as_u64) {
            Some(0) => Filter::Nearest,
            Some(1) => Filter::Lanczos,
            Some(2) => Filter::Bilinear,
            Some(3) | None => Filter::Bicubic,
            Some(n) => return Err(format!("`resample` is {n}; 0 to 3 are supported")),
        };
        let crops = flag("do_center_crop", false);
        let mut sizes = vec![];
        if flag("do_resize", true) {
            let size = v.get("size").ok_or("has no `size`")?;
            sizes.push(
                size_of(size, crops).ok_or_else(|| format!("`size` is {size}, which is not supported"))?,
            );
            // Without tiles, processors of Idefics3 make the picture a square.
            if let Some(edge) = v.get("max_image_size").and_then(|m| number(m.get("longest_edge"))) {
                sizes.push(Size::Exact(edge, edge));
            }
        }
        let crop = match v.get("crop_size").filter(|_| crops) {
            None => None,
            Some(size) => match size_of(size, false) {
                Some(Size::Exact(h, w)) => Some((h, w)),
                _ => return Err(format!("`crop_size` is {size}, not a height and a width")),
            },
        };
        if flag("do_pad", false)
            && sizes.len() < 2
            && v.get("image_processor_type").and_then(Value::as_str) == Some("LlavaImageProcessor")
        {
            return Err("has `do_pad`, which is not supported".to_owned());
        }
        let channels = |key: &str, or: [f32; 3]| match v.get(key) {
            None | Some(Value::Null) => Ok(or),
            Some(list) => {
                let all: Option<Vec<f32>> =
                    list.as_array().and_then(|l| l.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
                let all = all.and_then(|l| <[f32; 3]>::try_from(l).ok());
                all.ok_or_else(|| format!("`{key}` is {list}, not three numbers"))
            }
        };
        let normal = flag("do_normalize", true);
        let factor = v.get("rescale_factor").and_then(Value::as_f64).map_or(1.0 / 255.0, |f| f as f32);
        Ok(Processor {
            filter,
            sizes,
            crop,
            scale: if flag("do_rescale", true) { factor } else { 1.0 },
            mean: if normal { channels("image_mean", [0.5; 3])? } else { [0.0; 3] },
            deviation: if normal { channels("image_std", [0.5; 3])? } else { [1.0; 3] },
        })
    }

    /// The heights and widths that a picture has, one after the other; `None` for one that is too large.
    pub fn resized(&self, (mut height, mut width): (u32, u32)) -> Option<Vec<(u32, u32)>> {
        let mut all = vec![];
        for size in &self.sizes {
            (height, width) = size.of(height, width)?;
            if height == 0 || width == 0 || u64::from(height) * u64::from(width) > MOST {
                return None;
            }
            all.push((height, width));
        }
        Some(all)
    }
}

impl Size {
    /// The height and width of a picture of this height and width, as transformers computes them.
    fn of(self, height: u32, width: u32) -> Option<(u32, u32)> {
        let scaled = |edge: u32, of: u32, by: u32| {
            u32::try_from(u64::from(edge) * u64::from(of) / u64::from(by.max(1))).ok()
        };
        match self {
            Size::Exact(h, w) => Some((h, w)),
            Size::Shortest(edge) if height <= width => Some((edge, scaled(edge, width, height)?)),
            Size::Shortest(edge) => Some((scaled(edge, height, width)?, edge)),
            Size::Longest(edge) => {
                // Python computes with the quotient of the edges.
                let ratio = f64::from(width) / f64::from(height.max(1));
                let even = |x: f64| (x as u32).checked_next_multiple_of(2);
                let (h, w) = match width >= height {
                    true => (even(f64::from(edge) / ratio)?, edge),
                    false => (edge, even(f64::from(edge) * ratio)?),
                };
                let ratio = f64::from(w) / f64::from(h.max(1));
                let (h, w) = match (w >= h, w.max(h) > LONGEST) {
                    (_, false) => (h, w),
                    (true, true) => ((f64::from(LONGEST) / ratio) as u32, LONGEST),
                    (false, true) => (LONGEST, (f64::from(LONGEST) * ratio) as u32),
                };
                Some((h.max(1), w.max(1)))
            }
        }
    }
}

fn number(v: Option<&Value>) -> Option<u32> {
    v.and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)
}

/// A size as processors write it: a number is that of the shorter edge where the centre is kept, and otherwise that of both.
fn size_of(v: &Value, crops: bool) -> Option<Size> {
    if let Some(edge) = number(Some(v)) {
        return Some(if crops { Size::Shortest(edge) } else { Size::Exact(edge, edge) });
    }
    let of = |key: &str| number(v.get(key));
    match (of("height"), of("width"), of("shortest_edge"), of("longest_edge")) {
        (Some(h), Some(w), ..) => Some(Size::Exact(h, w)),
        (_, _, Some(edge), None) => Some(Size::Shortest(edge)),
        (_, _, None, Some(edge)) => Some(Size::Longest(edge)),
        _ => None,
    }
}

fn wrong(path: &Path, why: String) -> Error {
    Error::file_help(
        path,
        why,
        "give the vision encoder the picture as numbers (ImageEncoder::encode_pixels)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_transformers() {
        // get_resize_output_image_size of CLIP and of Idefics3.
        for (size, from, to) in [
            (Size::Shortest(32), (37, 50), (32, 43)),
            (Size::Shortest(32), (50, 37), (43, 32)),
            (Size::Longest(128), (37, 50), (94, 128)),
            (Size::Longest(128), (50, 37), (128, 94)),
            (Size::Longest(5000), (100, 100), (4096, 4096)),
            (Size::Longest(100), (1, 9999), (1, 100)),
            (Size::Exact(7, 9), (50, 37), (7, 9)),
        ] {
            let got = size.of(from.0, from.1).unwrap();
            assert_eq!(got, to, "{size:?} of {from:?}");
        }
    }

    #[test]
    fn settings_are_read_and_others_are_refused() {
        let read = |json: &str| Processor::parse(&serde_json::from_str(json).unwrap());
        let clip = read(r#"{"size": 336, "crop_size": 336, "do_center_crop": true, "resample": 3}"#).unwrap();
        assert_eq!((clip.sizes, clip.crop), (vec![Size::Shortest(336)], Some((336, 336))));
        let siglip = read(r#"{"size": {"height": 5, "width": 6}, "do_normalize": false, "resample": 2}"#);
        let siglip = siglip.unwrap();
        assert_eq!((siglip.filter, siglip.deviation), (Filter::Bilinear, [1.0; 3]));
        let idefics = read(r#"{"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}"#);
        assert_eq!(idefics.unwrap().resized((100, 200)), Some(vec![(1024, 2048), (512, 512)]));
        for (json, says) in [
            ("{}", "no `size`"),
            (r#"{"size": {"edge": 3}}"#, "not supported"),
            (r#"{"size": 3, "resample": 5}"#, "`resample` is 5"),
            (r#"{"size": 3, "image_mean": [1, 2]}"#, "`image_mean` is [1,2]"),
        ] {
            assert!(read(json).unwrap_err().contains(says), "{json}");
        }
        let huge = read(r#"{"size": {"height": 4000000000, "width": 4000000000}}"#).unwrap();
        assert_eq!(huge.resized((3, 3)), None);
    }
}
