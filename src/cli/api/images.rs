//! Pictures in the messages of requests: parts `image_url`, whose URL holds the picture.

use super::protocol::{Chat, Refusal};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use wgfc::generate::{Content, ImageEncoder, ImageFeatures, Json, Message};
use wgfc::runtime::Gpu;
use wgfc::{Decoder, Error, GeneratorOptions};

/// The pictures whose features are kept: those of a conversation come again with each message.
const KEPT: usize = 64;

/// A vision encoder, and the features that it has made.
pub struct Images(Option<Mutex<Encoder>>);

struct Encoder {
    encoder: ImageEncoder,
    /// The latest features, by the hash of the picture's file.
    kept: VecDeque<([u8; 32], ImageFeatures)>,
}

impl Encoder {
    fn features(&mut self, picture: &[u8]) -> Result<ImageFeatures, Error> {
        let hash: [u8; 32] = Sha256::digest(picture).into();
        if let Some((_, features)) = self.kept.iter().find(|(h, _)| *h == hash) {
            return Ok(features.clone());
        }
        let features = self.encoder.encode(picture)?;
        self.kept.truncate(KEPT - 1);
        self.kept.push_front((hash, features.clone()));
        Ok(features)
    }

    /// The features of the picture in a part, which is the field `name` of the request.
    fn of_part(&mut self, part: &Json, name: &str) -> Result<ImageFeatures, Refusal> {
        let refused = |message: &str| Refusal::param(name, format!("'{name}' {message}"), "invalid_value");
        let url = part.get("image_url").and_then(|u| u.as_str().or_else(|| u.get("url")?.as_str()));
        let data = url.and_then(|url| url.strip_prefix("data:")).and_then(|data| data.split_once(";base64,"));
        let other =
            || refused("is not a URL of the form data:image/png;base64,…: the server fetches nothing");
        let text = data.ok_or_else(other)?.1.trim_end_matches('=');
        let picture = STANDARD_NO_PAD.decode(text);
        let picture = picture.map_err(|e| refused(&format!("is not valid base64: {e}")))?;
        self.features(&picture).map_err(|e| Refusal::of(&e, name))
    }
}

impl Images {
    /// No vision encoder.
    pub fn none() -> Images {
        Images(None)
    }

    /// The vision encoder beside a decoder, if there is one.
    pub fn on_device(gpu: &Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<Images, Error> {
        if !decoder.has_image_encoder() {
            return Ok(Images(None));
        }
        let encoder = ImageEncoder::on_device(gpu.clone(), decoder, options)?;
        Ok(Images(Some(Mutex::new(Encoder { encoder, kept: VecDeque::new() }))))
    }

    /// The tokens of a chat's prompt, and the features of the pictures in it. A model that takes none has a template that refuses them.
    pub fn encode(&self, chat: &Chat, decoder: &Decoder) -> Result<(Vec<i64>, Vec<ImageFeatures>), Refusal> {
        let mut images = vec![];
        let mut messages = chat.messages.clone();
        let Some(encoder) = &self.0 else {
            let tokens = decoder.chat_prompt(&messages, &chat.options());
            return Ok((tokens.map_err(|e| Refusal::of(&e, "messages"))?, images));
        };
        let mut encoder = encoder.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, message) in messages.iter_mut().enumerate() {
            let Some(Content::Parts(parts)) = &mut message.content else { continue };
            for (j, part) in parts.iter_mut().enumerate() {
                if part.get("type").and_then(Json::as_str) != Some("image_url") {
                    continue;
                }
                let name = format!("messages[{i}].content[{j}].image_url");
                images.push(encoder.of_part(part, &name)?);
                *part = Message::image_part();
            }
        }
        let tokens = decoder.chat_prompt_with_images(&messages, &chat.options(), &images);
        Ok((tokens.map_err(|e| Refusal::of(&e, "messages"))?, images))
    }
}
