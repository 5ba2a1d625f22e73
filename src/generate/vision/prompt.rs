//! Prompts with pictures: what stands in the text for one, and the tokens that take its place.

use super::ImageFeatures;
use crate::Error;
use crate::generate::{ChatOptions, Decoder, Message};

/// The file with the architecture of a model, and with the token for a part of a picture.
const CONFIG: &str = "config.json";
/// The mark for a picture that every prompt may have.
const MARK: &str = "<image>";

/// How the processor of a model writes a picture in a prompt.
struct Marks {
    /// The token for each row of features.
    token: i64,
    /// The text of that token.
    text: String,
    /// The mark that chat templates write for a picture.
    mark: String,
    /// The texts around the tokens.
    around: [&'static str; 2],
}

/// The marks of architectures (`model_type`) that write more than the tokens: the mark in the chat template if it is not the token, and
/// the texts around the tokens. A picture is one tile.
const FAMILIES: [(&str, Option<&str>, [&str; 2]); 3] = [
    ("idefics3", None, ["<fake_token_around_image><global-img>", "<fake_token_around_image>"]),
    ("smolvlm", None, ["<fake_token_around_image><global-img>", "<fake_token_around_image>"]),
    ("gemma3", Some("<start_of_image>"), ["\n\n<start_of_image>", "<end_of_image>\n\n"]),
];

impl Decoder {
    /// The token that stands for a part of a picture in the prompts of this model, as `config.json` says (`image_token_id`), or the token
    /// `<image>` of the vocabulary; `None` where there is neither.
    ///
    /// # Errors
    /// A `config.json` that cannot be read.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
    /// // A model of words alone.
    /// assert_eq!(wgfc::Decoder::open(&path)?.image_token()?, None);
    /// # Ok(()) }
    /// ```
    pub fn image_token(&self) -> Result<Option<i64>, Error> {
        Ok(self.marks()?.map(|m| m.token))
    }

    /// Whether the encoder of pictures lies beside the model, as in the folder of a vision-language model.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/vision-language/llava");
    /// // A folder with onnx/vision_encoder.onnx.
    /// assert!(wgfc::Decoder::open(&path)?.has_image_encoder());
    /// # Ok(()) }
    /// ```
    pub fn has_image_encoder(&self) -> bool {
        crate::files::part_beside(self.model().path(), crate::files::VISION).is_some()
    }

    fn marks(&self) -> Result<Option<Marks>, Error> {
        let config = self.json_beside(CONFIG)?.map(|(_, value)| value).unwrap_or_default();
        let given = ["image_token_id", "image_token_index"].iter().find_map(|k| config.get(k)?.as_i64());
        let Some(token) = given.or_else(|| self.token_id(MARK)) else { return Ok(None) };
        let text = self.token_text(token).unwrap_or_else(|| MARK.to_owned());
        let architecture = config.get("model_type").and_then(|t| t.as_str()).unwrap_or_default();
        let family = FAMILIES.iter().find(|(name, ..)| *name == architecture);
        let mark = family.and_then(|f| f.1).unwrap_or(&text).to_owned();
        Ok(Some(Marks { token, text, mark, around: family.map_or(["", ""], |f| f.2) }))
    }

    /// The text of a token, as the vocabulary has it.
    fn token_text(&self, id: i64) -> Option<String> {
        self.tokenizer().ok()?.token(u32::try_from(id).ok()?)
    }

    /// The id of the token with this text, if the vocabulary has it.
    fn token_id(&self, text: &str) -> Option<i64> {
        self.tokenizer().ok()?.id(text).map(i64::from)
    }

    fn no_images(&self) -> Error {
        Error::file_help(
            self.path(),
            "takes no pictures: no token stands for one",
            "take a vision-language model, whose config.json has `image_token_id`",
        )
    }

    /// The tokens of a text in which `<image>` stands for each picture, in their order. If it stands nowhere, the pictures come first. The
    /// features of a picture take as many positions as it has rows, between the tokens that the model's processor writes around them.
    /// [`Request::images`](super::super::Request::images) takes the same pictures.
    ///
    /// # Errors
    /// Another number of marks than of pictures; a model without a token for pictures; otherwise as for [`Decoder::encode`].
    ///
    /// ```no_run
    /// use wgfc::generate::{Decoder, Generator, GeneratorOptions, ImageEncoder, Request};
    /// # fn main() -> Result<(), wgfc::Error> {
    /// let decoder = Decoder::open("SmolVLM-256M-Instruct".as_ref())?;
    /// let options = GeneratorOptions::default();
    /// let mut encoder = ImageEncoder::new(&decoder, &options)?;
    /// let images = vec![encoder.encode_file("cat.png".as_ref())?];
    /// let prompt = decoder.encode_with_images("<image> The picture shows", &images)?;
    /// let request = Request { max_new_tokens: 50, images, ..Request::default() };
    /// let mut generator = Generator::new(&decoder, &options)?;
    /// let tokens: Vec<i64> = generator.generate(&prompt, &request)?.collect::<Result<_, _>>()?;
    /// # Ok(()) }
    /// ```
    pub fn encode_with_images(&self, text: &str, images: &[ImageFeatures]) -> Result<Vec<i64>, Error> {
        // In a model of words the mark is a word.
        if images.is_empty() && !self.has_image_encoder() {
            return self.encode(text);
        }
        let marks = match self.marks()? {
            Some(marks) => marks,
            None if images.is_empty() => return self.encode(text),
            None => return Err(self.no_images()),
        };
        let mark = if text.contains(&marks.mark) { &marks.mark } else { MARK };
        let front = if text.contains(mark) { String::new() } else { mark.repeat(images.len()) };
        self.placed(&format!("{front}{text}"), mark, &marks, images, true)
    }

    /// The tokens of [`Decoder::chat_text`] for messages with pictures: a part `{"type": "image"}` of a message's content stands for each,
    /// in their order.
    ///
    /// # Errors
    /// Another number of such parts than of pictures; a model without a token for pictures; otherwise as for [`Decoder::chat_prompt`].
    ///
    /// ```no_run
    /// use wgfc::generate::{ChatOptions, Decoder, ImageFeatures, Message};
    /// # fn prompt(cat: ImageFeatures) -> Result<(), wgfc::Error> {
    /// let decoder = Decoder::open("SmolVLM-256M-Instruct".as_ref())?;
    /// let message = Message::user_with_images(1, "What is in this picture?");
    /// let prompt = decoder.chat_prompt_with_images(&[message], &ChatOptions::default(), &[cat])?;
    /// # Ok(()) }
    /// ```
    pub fn chat_prompt_with_images(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        images: &[ImageFeatures],
    ) -> Result<Vec<i64>, Error> {
        self.tokenizer()?;
        let text = self.chat_text(messages, options)?;
        // Without pictures a text may have the mark as a word.
        if images.is_empty() && !messages.iter().any(Message::has_images) {
            return self.tokens_of(&text, false);
        }
        let marks = self.marks()?.ok_or_else(|| self.no_images())?;
        self.placed(&text, &marks.mark, &marks, images, false)
    }

    /// The tokens of a text whose marks are replaced by pictures. `special`: with the special tokens that the tokenizer adds.
    fn placed(
        &self,
        text: &str,
        mark: &str,
        marks: &Marks,
        images: &[ImageFeatures],
        special: bool,
    ) -> Result<Vec<i64>, Error> {
        let places = text.matches(mark).count();
        if places != images.len() {
            let place = if places == 1 { "place for a picture" } else { "places for pictures" };
            let given = match images.len() {
                0 => "no picture is given".to_owned(),
                1 => "one picture is given".to_owned(),
                n => format!("{n} pictures are given"),
            };
            return Err(Error::usage(
                format!("the prompt has {places} {place} (`{mark}`), and {given}"),
                "give a picture for each place, or no place, so that the pictures come first",
            ));
        }
        let mut parts = text.split(mark);
        let mut whole = parts.next().unwrap_or_default().to_owned();
        for (image, part) in images.iter().zip(parts) {
            let [before, after] = marks.around;
            whole.push_str(before);
            whole.push_str(&marks.text.repeat(image.len()));
            whole.push_str(after);
            whole.push_str(part);
        }
        let tokens = self.tokens_of(&whole, special)?;
        if images.is_empty() { Ok(tokens) } else { placed(&tokens, marks.token, images) }
    }

    /// Token ids in which each token for a part of a picture ([`Decoder::image_token`]) is replaced by the row of features that it stands
    /// for: those that a processor of transformers makes can be given so.
    ///
    /// # Errors
    /// Another number of such tokens than of rows; a model without a token for pictures.
    pub fn place_images(&self, tokens: &[i64], images: &[ImageFeatures]) -> Result<Vec<i64>, Error> {
        if images.is_empty() {
            return Ok(tokens.to_vec());
        }
        placed(tokens, self.marks()?.ok_or_else(|| self.no_images())?.token, images)
    }
}

fn placed(tokens: &[i64], mark: i64, images: &[ImageFeatures]) -> Result<Vec<i64>, Error> {
    let rows: usize = images.iter().map(ImageFeatures::len).sum();
    let places = tokens.iter().filter(|t| **t == mark).count();
    if rows != places {
        return Err(Error::usage(
            format!(
                "{places} tokens of the prompt stand for parts of pictures (token {mark}), and the pictures have {rows} rows of features"
            ),
            "give as many of these tokens as the features of each picture have rows, or a text",
        ));
    }
    let mut rows = images.iter().flat_map(ImageFeatures::tokens);
    Ok(tokens.iter().map(|t| if *t == mark { rows.next().unwrap_or(mark) } else { *t }).collect())
}
