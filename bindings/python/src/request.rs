//! The named arguments of the methods that generate tokens.

use crate::decoder::{Files, json};
use crate::error::Raise;
use crate::images::Picture;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::collections::BTreeMap;
use wgfc::Request;
use wgfc::generate::{Choices, Form, ImageFeatures};

/// The number of tokens that are asked for, how they are chosen, and when they end.
pub struct Asked {
    /// `None` for as many as the cache has room for.
    pub max_new_tokens: Option<usize>,
    /// `None` for those of the model.
    pub stop: Option<Vec<i64>>,
    choices: Choices,
    logprobs: Option<usize>,
    form: Option<Form>,
    /// The pictures of the prompt.
    pub images: Vec<Picture>,
}

/// Named arguments, from which those that are known are taken.
struct Named<'py>(Bound<'py, PyDict>);

impl<'py> Named<'py> {
    /// The value of an argument, if it is given and not `None`.
    fn value(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(value) = self.0.get_item(name)? else { return Ok(None) };
        self.0.del_item(name)?;
        Ok(Some(value).filter(|v| !v.is_none()))
    }

    /// An argument; `want` says in errors what it must be.
    fn take<T: FromPyObjectOwned<'py>>(&self, name: &str, want: &str) -> PyResult<Option<T>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        match value.extract() {
            Ok(taken) => Ok(Some(taken)),
            Err(e) => {
                let is_type: bool = Into::<PyErr>::into(e).is_instance_of::<PyTypeError>(value.py());
                let message = format!("{name}: give {want}, not {}", value.repr()?);
                Err(if is_type { PyTypeError::new_err(message) } else { PyValueError::new_err(message) })
            }
        }
    }

    /// The form that the output is held to.
    fn form(&self) -> PyResult<Option<Form>> {
        let schema = self.value("json_schema")?.map(|schema| match schema.cast::<PyString>() {
            Ok(text) => text.extract(),
            Err(_) => json(&schema).map_err(|e| {
                let error = PyTypeError::new_err(format!(
                    "json_schema: give a dict of what JSON can hold, or the text of a schema: {e}"
                ));
                error.set_cause(schema.py(), Some(e));
                error
            }),
        });
        let text = |name| self.take::<String>(name, "a text");
        let all = [
            schema.transpose()?.map(Form::JsonSchema),
            text("regex")?.map(Form::Regex),
            text("grammar")?.map(Form::Grammar),
        ];
        let mut given = all.into_iter().flatten();
        let first = given.next();
        if given.next().is_some() {
            return Err(PyTypeError::new_err(
                "json_schema, regex and grammar: give one of them, since the output can be held to one form only",
            ));
        }
        Ok(first)
    }
}

impl Asked {
    /// Reads named arguments. The ones that are not known are returned, too.
    pub fn read<'py>(
        py: Python<'py>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Asked, Bound<'py, PyDict>)> {
        let named = Named(options.map_or_else(|| Ok(PyDict::new(py)), |o| o.copy())?);
        let (number, count, ids) = ("a number", "a whole number, at least 0", "a list of token ids");
        let bias = named.take::<BTreeMap<i64, f32>>("logit_bias", "a dict from token ids to numbers")?;
        let choices = Choices {
            temperature: named.take("temperature", number)?,
            top_k: named.take("top_k", count)?,
            top_p: named.take("top_p", number)?,
            min_p: named.take("min_p", number)?,
            repetition_penalty: named.take("repetition_penalty", number)?,
            presence_penalty: named.take("presence_penalty", number)?.unwrap_or_default(),
            frequency_penalty: named.take("frequency_penalty", number)?.unwrap_or_default(),
            logit_bias: bias.into_iter().flatten().collect(),
            seed: named.take("seed", count)?.unwrap_or_default(),
        };
        let asked = Asked {
            max_new_tokens: named.take("max_new_tokens", count)?,
            stop: named.take("stop", ids)?,
            choices,
            logprobs: named.take("logprobs", count)?,
            form: named.form()?,
            images: named.value("images")?.map_or_else(|| Ok(vec![]), |images| Picture::read(&images))?,
        };
        Ok((asked, named.0))
    }

    /// Reads the named arguments of a method that has no others.
    pub fn read_all(py: Python<'_>, method: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Asked> {
        let (asked, rest) = Asked::read(py, options)?;
        match rest.keys().iter().next() {
            Some(name) => {
                let message =
                    format!("Generator.{method}() got an unexpected keyword argument {}", name.repr()?);
                Err(PyTypeError::new_err(message))
            }
            None => Ok(asked),
        }
    }

    /// The request to a generator of this model, with the features of the pictures; `max_new_tokens` of none is 0.
    pub fn request(self, py: Python<'_>, files: &Files, images: Vec<ImageFeatures>) -> PyResult<Request> {
        let form = self.form;
        let constraint = py.detach(|| form.map(|f| files.constraint(f)).transpose()).or_raise(py)?;
        Ok(Request {
            max_new_tokens: self.max_new_tokens.unwrap_or(0),
            sampling: files.decoder.defaults().sampling(&self.choices),
            stop: self.stop.unwrap_or_else(|| files.decoder.stop_tokens()),
            logprobs: self.logprobs,
            constraint,
            images,
        })
    }
}
